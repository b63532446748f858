"""The forty mixed requests on a GPU, with CUDA graphs and without: what each gets is what it got alone.

Alone means one by one, each operation launched by itself, each step finished before the next one is planned.
"""

import itertools

import pytest

from support.golden.invariance_comparison import differences
from support.golden.invariance_requests import make_sparse_model
from support.golden.invariance_runs import ROOMY, SETTINGS, open_streams, run, run_alone, run_moving, run_shuffled

TIGHT = {"num_kv_blocks": 12}
BLOCK_BYTES = 2 * 2 * 16 * 2 * 16 * 4  # keys and values of 2 layers, 16 tokens, 2 heads of 16 channels in float32
SECOND_POOL = {"kv_offload_bytes": 60 * BLOCK_BYTES}
PLAIN = {"enforce_eager": True, "async_scheduling": False}
WAYS = {
    "graphs": {},
    "graphs, waiting": {"async_scheduling": False},
    "no graphs": {"enforce_eager": True},
}
CASES = {
    "one batch": (ROOMY, run),
    "one batch, uncached": (ROOMY | {"enable_prefix_caching": False}, run),
    "arriving, steps of 16 tokens": ({"num_kv_blocks": 80, "max_num_batched_tokens": 16, "max_num_seqs": 12}, None),
    "preempted": (TIGHT | {"max_num_batched_tokens": 512}, None),
    "preempted, steps of 16 tokens, uncached": (
        TIGHT | {"max_num_batched_tokens": 16, "enable_prefix_caching": False},
        None,
    ),
    "swapped": (TIGHT | SECOND_POOL | {"max_num_batched_tokens": 20}, None),
}


@pytest.fixture(scope="module")
def plainly_alone(folder, requests):
    with open_streams(folder, enable_prefix_caching=False, **ROOMY, **PLAIN) as streams:
        return run_alone(streams, requests)


@pytest.fixture
def way(request, monkeypatch):
    """Every engine of a test has these settings."""
    for name, value in WAYS[request.param].items():
        monkeypatch.setitem(SETTINGS, name, value)


def check_same(got, expected):
    assert "\n".join(differences(expected.outputs, got.outputs)) == ""


def check_counters(stats, expected):
    names = ("prompt_tokens_total", "generation_tokens_total", "requests_finished_total")
    assert {name: getattr(stats, name) for name in names} == {name: getattr(expected.stats, name) for name in names}
    assert (stats.num_running, stats.num_waiting, stats.kv_blocks_used, stats.kv_offload_blocks_used) == (0, 0, 0, 0)


def check_case(case, folder, requests, expected, **settings):
    limits, run_case = CASES[case]
    with open_streams(folder, **limits | settings) as streams:
        if run_case is None:
            got = run_shuffled(streams, requests, seed=len(case), trace=True)
        else:
            got = run_case(streams, requests)
    check_same(got, expected)
    check_counters(got.stats, expected)
    assert (got.stats.num_preemptions_total > 10) == (limits["num_kv_blocks"] == 12)
    assert (got.num_events("swapped_in") > 10) == (case == "swapped")


def rest_every(num_steps, level):
    steps = itertools.count(1)

    def rest(streams):
        if next(steps) % num_steps:
            return []
        if level is None:
            streams.pause()
        else:
            streams.sleep(level)
        told = streams.step()  # of the step that was under way, if one was
        if level is None:
            streams.resume()
        else:
            streams.wake()
        return told

    return rest


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS, indirect=True)
@pytest.mark.parametrize("case", CASES)
def test_answers_on_a_gpu_are_the_same_in_every_case(case, way, folder, requests, plainly_alone):
    check_case(case, folder, requests, plainly_alone)


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_answers_on_a_gpu_are_the_same_from_the_cache(way, folder, requests, plainly_alone):
    with open_streams(folder, **ROOMY) as streams:
        run(streams, requests)
        again = run(streams, requests)
    check_same(again, plainly_alone)
    assert again.stats.cached_prompt_tokens_total > 1000


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS, indirect=True)
@pytest.mark.parametrize("level", [None, 0, 1, 2])
def test_answers_on_a_gpu_are_the_same_when_the_engine_sleeps_in_between(level, way, folder, requests, plainly_alone):
    with open_streams(folder, **TIGHT, **SECOND_POOL) as streams:
        got = run(streams, requests, after_step=rest_every(15, level))
    check_same(got, plainly_alone)
    check_counters(got.stats, plainly_alone)


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_answers_on_a_gpu_are_the_same_from_engine_to_engine(way, folder, requests, plainly_alone):
    check_same(run_moving(folder, requests, steps_each=15, **ROOMY), plainly_alone)


@pytest.mark.gpu
def test_answers_on_a_gpu_are_the_same_from_a_static_engine(folder, requests, plainly_alone):
    with open_streams(folder, engine="static", max_num_seqs=8) as streams:
        got = run(streams, requests)
    check_same(got, plainly_alone)
    check_counters(got.stats, plainly_alone)


@pytest.fixture(scope="module")
def sparse_folder(tmp_path_factory):
    return make_sparse_model(tmp_path_factory.mktemp("sparse"))


@pytest.fixture(scope="module")
def sparse_alone(sparse_folder, requests):
    with open_streams(sparse_folder, enable_prefix_caching=False, **ROOMY, **PLAIN) as streams:
        return run_alone(streams, requests)


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS, indirect=True)
@pytest.mark.parametrize("case", ["one batch", "swapped"])
def test_answers_of_windows_and_experts_on_a_gpu_are_the_same(case, way, sparse_folder, requests, sparse_alone):
    check_case(case, sparse_folder, requests, sparse_alone)


def test_an_engine_without_llm_answers_as_with_it(folder, requests, alone):
    check_case("swapped", folder, requests, alone)
    with open_streams(folder, **TIGHT, **SECOND_POOL) as streams:
        check_same(run(streams, requests, after_step=rest_every(40, 2)), alone)
