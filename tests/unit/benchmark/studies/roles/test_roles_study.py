import pytest

from rayinfer.benchmark.studies.autoscaling.simulated_engine import EnginePace
from rayinfer.benchmark.studies.roles.mixed_load import MixedLoad, outcome
from rayinfer.benchmark.studies.roles.roles_report import run_roles_benchmark
from rayinfer.benchmark.studies.roles.simulated_roles import simulate
from support.tiny_models.tiny_checkpoints import make_tiny_llama

PACE = EnginePace(step_s=0.01, prompt_token_s=0.001, output_token_s=0.0, chunk_tokens=100)
LOAD = MixedLoad(duration_s=60, chats_per_s=1, chat_tokens=(10, 50), long_per_s=0.1, long_tokens=(1000, 10))


def simulated(num_prefill, load=LOAD, transfer_token_s=0.0):
    return simulate(load, PACE, num_engines=2, num_prefill=num_prefill, transfer_token_s=transfer_token_s)


def test_every_request_gets_its_tokens_with_roles_and_without():
    requests = LOAD.requests()
    for num_prefill in (0, 1):
        seen = simulated(num_prefill)
        assert seen.num_tokens == sum(request.output_tokens for request in requests)
        num_long = sum(map(LOAD.is_long, requests))
        assert (len(seen.long_ttft_s), len(seen.chat_ttft_s)) == (num_long, len(requests) - num_long)
        assert len(seen.chat_gaps_s) == 49 * (len(requests) - num_long)
        # One that comes while the prefill engine is full goes to the other, which keeps it.
        assert num_long - 2 <= seen.num_handovers <= num_long if num_prefill else seen.num_handovers == 0


def test_a_lone_long_prompt_takes_its_steps_and_the_transfer():
    lone = MixedLoad(duration_s=10, chats_per_s=1e-9, long_per_s=0.1, long_tokens=(1000, 3), seed=3)
    assert len(lone.requests()) == 1
    seen = simulated(1, lone, transfer_token_s=0.0001)
    assert seen.long_ttft_s == [pytest.approx(10 * 0.11)]
    # The rest: 984 tokens are handed over, 17 are computed with the second token, and one more step gives the third.
    assert seen.lasted_s == pytest.approx(10 * 0.11 + 0.0984 + 0.01 + 0.017 + 0.01)


def test_gaps_of_chats_are_those_of_their_engines_steps():
    seldom = MixedLoad(duration_s=60, chats_per_s=3, chat_tokens=(10, 50), long_per_s=0.05, long_tokens=(1000, 10))
    alone, with_roles = simulated(0, seldom), simulated(1, seldom)
    assert with_roles.num_handovers == len(with_roles.long_ttft_s)  # none came while the prefill engine was full
    assert max(alone.chat_gaps_s) == pytest.approx(0.11)  # a step with a chunk of a long prompt
    # Decode engines compute no chunk of one but the rest of a block.
    assert max(with_roles.chat_gaps_s) < 0.06


def test_the_report_has_both_and_the_same_tokens(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYINFER_SHARED_MEMORY", str(tmp_path / "shared"))
    folder = make_tiny_llama(tmp_path / "tiny")
    load = MixedLoad(duration_s=2, chats_per_s=3, chat_tokens=(8, 30), long_per_s=2, long_tokens=(300, 40))
    report = run_roles_benchmark(
        "tiny",
        folder,
        load,
        PACE,
        num_engines=2,
        num_prefill=1,
        transfer_token_s=0.0,
        settings={"dtype": "float32", "num_kv_blocks": 256, "kv_store_gib": 0.02},
        num_rounds=2,
        command="rayinfer bench roles",
        log=lambda _: None,
    )
    rows = [(each.how, each.arrangement, each.same_tokens) for each in report.outcomes]
    both, parted = "2 for both", "1 prefill, 1 decode"
    assert rows == [
        ("simulated", both, None),
        ("simulated", parted, None),
        ("measured", both, None),
        ("measured", parted, True),
    ]
    assert report.outcomes[3].num_handovers > 0
    assert all(each.chat_gap_ms[0] > 0 for each in report.outcomes)
    assert report.tables()[0].lines()
    assert list((tmp_path / "shared").glob("*.kv")) == []


def test_an_outcome_without_requests_has_no_times():
    seen = simulated(0, MixedLoad(duration_s=1, chats_per_s=1e-9, long_per_s=1e-9))
    assert outcome("simulated", "2 for both", seen).row()[2:9] == (0.0,) * 7
