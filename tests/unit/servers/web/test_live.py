import json

import pytest

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.outputs import EngineStats
from rayinfer.servers.web.live import MAX_QUEUE_ROWS, OTHER_TENANTS, LiveSamples, Viewer

TINY = Viewer(frozenset({"org/tiny"}), None, may_operate=False)


def answer(metrics: ServiceMetrics) -> None:
    """Count one request for three tokens."""
    timer = metrics.request_started("org/tiny", 5)
    timer.record_dispatch()
    for _ in range(3):
        timer.tokens(1)
    timer.finished("stop")


def read(encoded: bytes) -> dict:
    assert encoded.startswith(b"data: ")
    return json.loads(encoded[6:])


@pytest.fixture
def clock():
    return [100.0]


@pytest.fixture
def samples(models, metrics, clock):
    return LiveSamples(models, metrics, clock=lambda: clock[0])


async def test_a_sample_counts_requests_and_tokens(metrics, samples):
    answer(metrics)
    model = read(await samples.latest(TINY))["models"]["org/tiny"]
    assert model["ready"] is True
    assert model["generation_tokens"] == 3
    assert sum(model["first_token"]["counts"]) == 1
    assert sum(model["inter_token"]["counts"]) == 2
    assert len(model["inter_token"]["counts"]) == len(model["inter_token"]["bounds"]) + 1
    assert model["finished"]["stop"] == 1


async def test_samples_are_shared_within_a_second(metrics, samples, clock):
    before = await samples.latest(TINY)
    answer(metrics)
    assert await samples.latest(TINY) is before
    clock[0] += 1.0
    assert read(await samples.latest(TINY))["models"]["org/tiny"]["generation_tokens"] == 3


async def test_a_sample_has_only_the_models_asked_for(samples):
    assert read(await samples.latest(TINY._replace(models=frozenset())))["models"] == {}


async def test_counts_of_other_routers_are_added(models, metrics):
    other = ServiceMetrics("other")
    other.stream_migrated("org/tiny")
    metrics.stream_migrated("org/tiny")

    async def others():
        return [other.snapshot()]

    sample = read(await LiveSamples(models, metrics, others).latest(TINY))
    assert (sample["num_routers"], sample["models"]["org/tiny"]["migrations"]) == (2, 2)


async def test_engines_are_shown_with_their_blocks(samples, generator):
    blocks = {"kv_blocks_used": 3, "kv_blocks_cached": 4, "kv_blocks_total": 8}
    drafts = {"draft_tokens_total": 9, "accepted_draft_tokens_total": 6}
    generator.engines = {"e1": EngineStats(num_running=2, **blocks, **drafts)}
    engine = read(await samples.latest(TINY))["models"]["org/tiny"]["engines"]["e1"]
    assert (engine["running"], engine["kv_blocks_used"], engine["kv_blocks_total"]) == (2, 3, 8)
    assert (engine["state"], engine["kv_blocks_cached"]) == ("running", 4)
    assert (engine["draft_tokens"], engine["accepted_draft_tokens"]) == (9, 6)


async def test_the_queue_names_only_tenants_that_the_viewer_may_see(metrics, samples):
    metrics.queued_by("org/tiny").update({("alice", 0): 2, ("bob", 0): 3, ("bob", 5): 1})
    rows = read(await samples.latest(TINY))["models"]["org/tiny"]["queue"]
    assert [(row["tenant"], row["priority"], row["waiting"]) for row in rows] == [
        *(("alice", 0, 2), ("bob", 0, 3), ("bob", 5, 1))
    ]
    own = read(await samples.latest(TINY._replace(tenant="alice")))["models"]["org/tiny"]["queue"]
    assert [(row["tenant"], row["waiting"]) for row in own] == [("alice", 2), (OTHER_TENANTS, 3), (OTHER_TENANTS, 1)]


async def test_the_rest_of_a_long_queue_is_added_up(metrics, samples):
    for number in range(MAX_QUEUE_ROWS + 5):
        metrics.queued_by("org/tiny")[f"tenant-{number}", 2] = 100 - number
    rows = read(await samples.latest(TINY))["models"]["org/tiny"]["queue"]
    assert len(rows) == MAX_QUEUE_ROWS + 1
    assert {row["tenant"]: row["waiting"] for row in rows}[OTHER_TENANTS] == sum(range(76, 81))


async def test_scaling_decisions_come_with_their_reasons(models, metrics):
    async def decisions(model):
        return [{"time_s": 1.0, "before": 1, "after": 2, "reason": f"{model} is full"}]

    sample = read(await LiveSamples(models, metrics, None, decisions).latest(TINY))
    assert sample["models"]["org/tiny"]["scaling"][0]["reason"] == "org/tiny is full"
