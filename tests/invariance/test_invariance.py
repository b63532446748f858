"""One set of forty mixed requests in every way that requests may come and run: what each gets is what it got alone."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.golden.invariance_comparison import differences
from support.golden.invariance_requests import make_sparse_model
from support.golden.invariance_router import run_behind_a_router
from support.golden.invariance_runs import (
    ROOMY,
    SETTINGS,
    Run,
    open_llm,
    run,
    run_alone,
    run_moving,
    run_shuffled,
)

TIGHT = {"num_kv_blocks": 12}
BLOCK_BYTES = 2 * 2 * 16 * 2 * 16 * 4  # keys and values of 2 layers, 16 tokens, 2 heads of 16 channels in float32
SECOND_POOL = {"kv_offload_bytes": 60 * BLOCK_BYTES}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test runs in the loop that overlaps steps, and those of `both_loops` in the one that waits for each too."""
    loops = {"overlapping": True}
    if metafunc.definition.get_closest_marker("both_loops") or metafunc.config.getoption("--every-case"):
        loops["waiting"] = False
    metafunc.parametrize("overlaps", loops.values(), ids=loops, indirect=True)


@pytest.fixture(autouse=True)
def overlaps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Every engine of a test has the same loop."""
    monkeypatch.setitem(SETTINGS, "async_scheduling", request.param)
    return bool(request.param)


def check_same(got: Run, alone: Run) -> None:
    assert "\n".join(differences(alone.outputs, got.outputs)) == ""


def check_counters(stats, alone: Run) -> None:
    """Nothing is counted twice, however often it was computed, and nothing is left behind."""
    names = ("prompt_tokens_total", "generation_tokens_total", "requests_finished_total")
    assert {name: getattr(stats, name) for name in names} == {name: getattr(alone.stats, name) for name in names}
    assert (stats.num_running, stats.num_waiting, stats.kv_blocks_used, stats.kv_offload_blocks_used) == (0, 0, 0, 0)


def test_the_requests_end_in_every_way_and_differ_from_each_other(alone, requests):
    assert len(requests) == 40
    choices = [choice for output in alone.outputs.values() for choice in output.outputs]
    ends = Counter((choice.finish_reason, type(choice.stop_reason)) for choice in choices)
    assert min(ends[end] for end in (("stop", str), ("stop", int), ("stop", type(None)), ("length", type(None)))) >= 3
    assert len({tuple(choice.token_ids) for choice in choices}) >= len(choices) - 5  # twins, and scored prompts
    assert {request.params.n for request in requests} == {1, 2, 3}


@pytest.mark.both_loops
@pytest.mark.parametrize("caching", [True, False])
def test_answers_are_the_same_in_one_batch(caching, folder, requests, alone):
    with open_llm(folder, enable_prefix_caching=caching, **ROOMY) as llm:
        got = run(llm, requests)
    check_same(got, alone)
    check_counters(got.stats, alone)
    assert got.stats.num_preemptions_total == 0


def test_answers_are_the_same_when_the_cache_holds_the_prompts(folder, requests, alone):
    with open_llm(folder, **ROOMY) as llm:
        run(llm, requests)
        got = run(llm, requests)
    check_same(got, alone)
    for request in requests:
        num_hit = 0 if request.params.prompt_logprobs is not None else (len(request.prompt_token_ids) - 1) // 16 * 16
        assert got.outputs[request.name].num_cached_tokens == num_hit, request.name


@pytest.mark.parametrize("caching", [True, False])
def test_answers_are_the_same_when_requests_arrive_in_between_and_a_step_has_16_tokens(
    caching, folder, requests, alone
):
    limits = {"num_kv_blocks": 80, "max_num_batched_tokens": 16, "max_num_seqs": 12}
    with open_llm(folder, enable_prefix_caching=caching, **limits) as llm:
        got = run_shuffled(llm, requests, seed=caching)
    check_same(got, alone)
    check_counters(got.stats, alone)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("budget", [16, 512])
def test_answers_are_the_same_in_a_pool_of_12_blocks(budget, caching, folder, requests, alone):
    with open_llm(folder, enable_prefix_caching=caching, max_num_batched_tokens=budget, **TIGHT) as llm:
        got = run_shuffled(llm, requests, seed=budget + caching)
    check_same(got, alone)
    check_counters(got.stats, alone)
    assert got.stats.num_preemptions_total > 10


@pytest.mark.both_loops
@pytest.mark.parametrize("caching", [True, False])
def test_answers_are_the_same_when_requests_are_swapped(caching, folder, requests, alone):
    limits = {"enable_prefix_caching": caching, "max_num_batched_tokens": 20} | TIGHT | SECOND_POOL
    with open_llm(folder, **limits) as llm:
        got = run_shuffled(llm, requests, seed=2, trace=True)  # some are swapped within their prompts
    check_same(got, alone)
    check_counters(got.stats, alone)
    assert got.num_events("swapped_in") > 10


@pytest.mark.parametrize("level", [None, pytest.param(0, marks=pytest.mark.every_case), 1, 2])
def test_answers_are_the_same_when_the_engine_sleeps_in_between(level, folder, requests, alone):
    steps, num_interrupted = itertools.count(), []

    def rest(llm):
        if next(steps) % 7:
            return []
        num_interrupted.append(llm.stats.num_running)
        if level is None:
            llm.pause()
            told = llm.step()  # of the step that was under way, if one was
            llm.resume()
        else:
            llm.sleep(level)
            told = llm.step()
            llm.wake()
        return told

    with open_llm(folder, **TIGHT, **SECOND_POOL) as llm:
        got = run(llm, requests, after_step=rest)
    check_same(got, alone)
    check_counters(got.stats, alone)
    assert sum(count > 2 for count in num_interrupted) > 10


async def test_answers_are_the_same_in_streams_behind_a_router(folder, requests, alone):
    got = await run_behind_a_router(folder, requests, num_engines=2, max_num_batched_tokens=16, **TIGHT)
    check_same(got, alone)
    assert got.stats.num_preemptions_total > 0


def test_answers_are_the_same_from_a_static_engine(folder, requests, alone):
    with open_llm(folder, engine="static", max_num_seqs=8) as llm:
        got = run(llm, requests)
    check_same(got, alone)
    check_counters(got.stats, alone)


def test_answers_are_the_same_when_requests_move_from_engine_to_engine(folder, requests, alone):
    check_same(run_moving(folder, requests, steps_each=15, **ROOMY), alone)


@pytest.fixture(scope="module")
def sparse_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sparse_model(tmp_path_factory.mktemp("sparse"))


@pytest.fixture(scope="module")
def sparse_alone(sparse_folder, requests) -> Run:
    with open_llm(sparse_folder, enable_prefix_caching=False, **ROOMY) as llm:
        return run_alone(llm, requests)


@pytest.mark.parametrize("caching", [True, False])
def test_answers_of_a_model_with_windows_and_experts_are_the_same_too(caching, sparse_folder, requests, sparse_alone):
    limits = {"max_num_batched_tokens": 48, "enable_prefix_caching": caching} | TIGHT | SECOND_POOL
    with open_llm(sparse_folder, **limits) as llm:
        got = run(llm, requests, trace=True)
    check_same(got, sparse_alone)
    check_counters(got.stats, sparse_alone)
    assert got.num_events("swapped_in") > 10


# The same to the bit, in arithmetic where one sum in another order would show

DETERMINISTIC: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "int8-dynamic": {"dtype": "bfloat16", "quantization": "int8-dynamic", "kv_cache_dtype": "int8"},
    # What eight bits and bfloat16 round away, the scales of these logits show.
    "int8-dynamic in float32": {"dtype": "float32", "quantization": "int8-dynamic", "kv_cache_dtype": "int8"},
}


@pytest.mark.parametrize(
    "mode", ["bfloat16", pytest.param("int8-dynamic", marks=pytest.mark.every_case), "int8-dynamic in float32"]
)
def test_answers_are_the_same_to_the_bit_in_a_batch_in_chunks_after_preemption_and_on_a_hit(mode, folder, requests):
    settings = {"deterministic": True, **DETERMINISTIC[mode]}

    def bits(got: Run) -> dict[str, object]:
        return {name: (output.prompt_logprobs, output.outputs) for name, output in got.outputs.items()}

    with open_llm(folder, enable_prefix_caching=False, **settings, **ROOMY) as llm:
        alone = run_alone(llm, requests)
    with open_llm(folder, **settings, **ROOMY, num_threads=2) as llm:
        together, hitting = run(llm, requests), run(llm, requests)
    with open_llm(folder, **settings, max_num_batched_tokens=16, **TIGHT) as llm:
        squeezed = run_shuffled(llm, requests, seed=5)
    assert bits(together) == bits(alone)
    assert bits(hitting) == bits(alone)
    assert bits(squeezed) == bits(alone)
    assert sum(output.num_cached_tokens for output in hitting.outputs.values()) > 500
    assert squeezed.stats.num_preemptions_total > 10
