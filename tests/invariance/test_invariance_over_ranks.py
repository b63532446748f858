"""The forty mixed requests over several ranks: what each gets is what it got alone, from one rank."""

import itertools
from dataclasses import replace

import pytest

from support.golden.invariance_comparison import differences
from support.golden.invariance_runs import (
    ROOMY,
    Run,
    open_llm,
    open_streams,
    run,
    run_shuffled,
    unreliable_drafter,
    with_modes,
)

BLOCK_BYTES = 2 * 2 * 16 * 2 * 16 * 4  # keys and values of 2 layers, 16 tokens, 2 heads of 16 channels in float32
TIGHT = {"num_kv_blocks": 12, "kv_offload_bytes": 30 * BLOCK_BYTES}
TWO_RANKS = {"tensor_parallel_size": 2}
TWO_STAGES = {"pipeline_parallel_size": 2}
FOUR_RANKS = TWO_RANKS | TWO_STAGES


def check_same(got: Run, alone: Run) -> None:
    assert "\n".join(differences(alone.outputs, got.outputs)) == ""
    assert (got.stats.num_running, got.stats.num_waiting, got.stats.kv_blocks_used) == (0, 0, 0)
    assert got.stats.kv_offload_blocks_used == 0


@pytest.mark.parametrize("sizes", [TWO_RANKS, pytest.param(TWO_STAGES, marks=pytest.mark.every_case)], ids=str)
def test_answers_are_the_same_in_one_batch_and_behind_cached_prompts(sizes, folder, requests, alone):
    with open_llm(folder, **ROOMY, **sizes) as llm:
        check_same(run(llm, requests), alone)
        again = run(llm, requests)
    check_same(again, alone)
    assert again.stats.cached_prompt_tokens_total > 1000


@pytest.mark.parametrize(
    "sizes",
    [pytest.param(TWO_RANKS, marks=pytest.mark.every_case), pytest.param(FOUR_RANKS, marks=pytest.mark.models)],
    ids=str,
)
def test_answers_are_the_same_when_requests_are_preempted_and_swapped(sizes, folder, requests, alone):
    with open_llm(folder, max_num_batched_tokens=20, **TIGHT, **sizes) as llm:
        got = run_shuffled(llm, requests, seed=3, trace=True)
    check_same(got, alone)
    assert got.stats.num_preemptions_total > 10
    assert got.num_events("swapped_in") > 5


@pytest.mark.parametrize(
    "sizes", [TWO_RANKS, TWO_STAGES, pytest.param(FOUR_RANKS, marks=pytest.mark.every_case)], ids=str
)
def test_answers_are_the_same_with_speculation(sizes, folder, requests, alone):
    drafter = unreliable_drafter(alone)
    with open_streams(folder, drafter=drafter, speculation="auto", max_num_seqs=8, num_kv_blocks=90, **sizes) as llm:
        got = run(llm, requests)
    check_same(got, alone)
    assert got.stats.accepted_draft_tokens_total > 100


def test_answers_of_a_pipeline_are_the_same_where_each_request_has_a_setting_of_its_own(folder, requests, alone):
    with open_streams(folder, drafter=unreliable_drafter(alone), max_num_seqs=6, **TIGHT, **TWO_STAGES) as llm:
        got = run_shuffled(llm, with_modes(requests), seed=5)
    check_same(got, alone)
    assert got.stats.num_preemptions_total > 5
    assert got.stats.draft_tokens_total > got.stats.accepted_draft_tokens_total > 50


@pytest.mark.parametrize(
    "sizes",
    [TWO_STAGES, *(pytest.param(sizes, marks=pytest.mark.every_case) for sizes in (TWO_RANKS, FOUR_RANKS))],
    ids=str,
)
def test_answers_are_the_same_with_a_draft_model(sizes, folder, requests, alone):
    with open_streams(folder, draft_model=str(folder), speculation="auto", **TIGHT, **sizes) as llm:
        got = run_shuffled(llm, with_modes(requests), seed=4)
    check_same(got, alone)
    assert got.stats.draft_tokens_total > got.stats.accepted_draft_tokens_total > 50


def test_a_pipeline_needs_fewer_steps_with_drafts(folder, requests, alone):
    settings = {"max_num_seqs": 8, "enable_prefix_caching": False}
    with open_streams(folder, drafter=unreliable_drafter(alone), **settings, **TWO_STAGES) as llm:
        without = run(llm, requests).stats.num_steps_total
        drafting = [each._replace(params=replace(each.params, speculation=5)) for each in requests]
        assert run(llm, drafting).stats.num_steps_total - without < 0.8 * without


def test_answers_are_the_same_when_a_pipeline_sleeps_in_between(folder, requests, alone):
    steps = itertools.count(1)

    def rest(llm):
        if (step := next(steps)) % 11 == 0:
            llm.sleep(step // 11 % 3)
            llm.wake()

    with open_llm(folder, num_kv_blocks=80, max_num_batched_tokens=64, **TWO_STAGES) as llm:
        got = run(llm, requests, after_step=rest)
    check_same(got, alone)
    assert next(steps) > 50
