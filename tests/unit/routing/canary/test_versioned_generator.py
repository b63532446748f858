from dataclasses import dataclass, field

import pytest

from rayinfer.errors import ConfigError, QueueFull
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.protocols import GenerationRequest
from rayinfer.routing.canary.releases import CanaryReleases
from rayinfer.routing.canary.settings import CanarySettings
from rayinfer.routing.canary.versioned_generator import VersionedGenerator
from rayinfer.routing.limits import router_limits
from rayinfer.sampling_params import SamplingParams
from rayinfer.tokenization.tokenizer import Tokenizer
from support.fakes.fake_generator import FakeGenerator
from support.tiny_models.tiny_checkpoints import save_tokenizer


@dataclass
class Versions:
    """A stable version and a canary, with their metrics and a clock."""

    metrics: ServiceMetrics = field(default_factory=ServiceMetrics)
    stable: FakeGenerator = field(default_factory=FakeGenerator)
    new: FakeGenerator = field(default_factory=FakeGenerator)
    now_s: float = 0.0

    def __post_init__(self):
        self.generator = VersionedGenerator("m", self.stable, self.metrics, clock=lambda: self.now_s)

    def start(self, **settings):
        self.generator.start(CanarySettings(**{"model": "new", "share": 0.2} | settings), self.new)

    async def ask(self, num, tenant=None):
        for number in range(num):
            request = GenerationRequest(
                request_id=f"r{number}",
                prompt_token_ids=[1],
                sampling_params=SamplingParams(max_tokens=1),
                tenant=tenant or f"t{number}",
            )
            async for _ in self.generator.generate(request):
                pass
        return len(self.new.requests)

    def count(self, model, num, reason="stop", ttft_s=0.1):
        for _ in range(num):
            timer = self.metrics.request_started(model, 1)
            timer.record_dispatch()
            timer.finished(reason)
        self.now_s += 2.0


@pytest.fixture
def versions():
    return Versions()


async def test_a_share_of_the_requests_goes_to_the_canary(versions):
    assert await versions.ask(50) == 0
    versions.start()
    assert await versions.ask(500) == pytest.approx(100, abs=25)
    versions.generator.stop()
    before = len(versions.new.requests)
    assert await versions.ask(50) == before


@pytest.mark.parametrize("share", [0.0, 1.0])
async def test_a_tenant_always_gets_one_version(versions, share):
    versions.start(by="tenant", share=0.5)
    taken = await versions.ask(40, tenant="alice")
    assert taken in (0, 40)
    versions.start(by="tenant", share=share)
    assert await versions.ask(40, tenant="bob") - taken == 40 * share


async def test_a_canary_that_cannot_answer_costs_no_request(versions):
    versions.start(share=1.0)
    for hindrance in ({"not_ready": "its engine is loading"}, {"full": QueueFull("full", 1.0)}, {"max_model_len": 8}):
        for name, value in hindrance.items():
            before = getattr(versions.new, name)
            setattr(versions.new, name, value)
            assert await versions.ask(5) == 0
            setattr(versions.new, name, before)
    assert len(versions.stable.requests) == 15
    assert await versions.ask(5) == 5


async def test_a_failing_canary_is_rolled_back(versions):
    versions.count("new", 100, "error")  # before it began
    versions.start(share=1.0, min_requests=10)
    versions.count("m", 20)
    assert await versions.ask(1) == 1
    versions.count("new", 12, "error")
    assert await versions.ask(5) == 1
    assert versions.generator.share == 0.0
    assert "failed" in versions.generator.rolled_back
    assert b'rayinfer_canary_share{canary="new",model_name="m"} 0.0' in versions.metrics.render()


@pytest.fixture
def releases(tmp_path):
    releases = CanaryReleases(ServiceMetrics())
    for name, size in (("m", 384), ("new", 384), ("foreign", 300)):
        (tmp_path / name).mkdir()
        save_tokenizer(tmp_path / name, size)
        releases.add(name, FakeGenerator(), Tokenizer.from_folder(tmp_path / name))
    return releases


async def test_only_models_with_the_same_tokenizer_are_canaries(releases):
    wanted = {"m": CanarySettings(model="foreign", share=0.5), "new": CanarySettings(model="nothing", share=0.5)}
    await releases.apply(wanted)
    problems = {state.model: state.problem for state in releases.states()}
    assert problems == {
        "m": "'foreign' has another tokenizer than 'm'",
        "new": "'nothing' is not served, or generates no text",
    }
    await releases.apply({"m": CanarySettings(model="new", share=0.5)})
    assert [(state.share, state.problem) for state in releases.states()] == [(0.5, "")]
    await releases.apply({})
    assert releases.states() == []


async def test_other_limits_do_not_start_a_rolled_back_canary_again(releases):
    wanted = {"m": CanarySettings(model="new", share=0.5)}
    await releases.apply(wanted)
    generator = releases.generator("m")
    generator.roll_back("it fails")
    await releases.apply(dict(wanted))
    assert [(state.share, state.problem) for state in releases.states()] == [(0.0, "it fails")]
    await releases.apply({"m": CanarySettings(model="new", share=0.6)})
    assert [(state.share, state.problem) for state in releases.states()] == [(0.6, "")]


@pytest.mark.parametrize(
    "canaries",
    [
        {"m": {"model": "m", "share": 0.5}},
        {"m": {"model": "new", "share": 0.5}, "new": {"model": "other", "share": 0.5}},
        {"m": {"model": "new", "share": 1.5}},
        {"m": {"model": "new"}},
    ],
)
def test_chains_and_impossible_shares_are_refused(canaries):
    with pytest.raises(ConfigError, match="canaries"):
        router_limits({"canaries": canaries})
