"""The forty mixed requests with drafts of their next tokens, right and wrong ones: each gets what it got without."""

import itertools
from typing import Any

import pytest

from support.golden.invariance_requests import VOCAB_SIZE
from support.golden.invariance_router import run_behind_a_router
from support.golden.invariance_runs import (
    ROOMY,
    Run,
    open_llm,
    open_streams,
    run,
    run_moving,
    run_shuffled,
    unreliable_drafter,
    with_modes,
)
from support.tiny_models.tiny_checkpoints import make_tiny_llama

BLOCK_BYTES = 2 * 2 * 16 * 2 * 16 * 4  # keys and values of 2 layers, 16 tokens, 2 heads of 16 channels in float32
TIGHT = {"num_kv_blocks": 12}
SECOND_POOL = {"kv_offload_bytes": 60 * BLOCK_BYTES}
OVERLAPPED = {"async_scheduling": True}

both_loops = pytest.mark.parametrize("loop", [{}, OVERLAPPED], ids=["waiting", "overlapped"])


def check_equal(got: Run, alone: Run, *, least_accepted: int = 200) -> None:
    """Check that outputs are equal to the bit, and that drafts were tried, some in vain."""
    for name, expected in alone.outputs.items():
        output = got.outputs[name]
        assert (output.outputs, output.prompt_logprobs) == (expected.outputs, expected.prompt_logprobs), name
    stats = got.stats
    assert stats.draft_tokens_total > stats.accepted_draft_tokens_total > least_accepted
    assert (stats.num_running, stats.num_waiting, stats.kv_blocks_used, stats.kv_offload_blocks_used) == (0, 0, 0, 0)


@both_loops
@pytest.mark.parametrize("speculation", ["auto", 3, 16])
@pytest.mark.parametrize("caching", [True, False])
def test_answers_are_the_same_with_drafts(speculation, caching, loop, folder, requests, alone):
    limits = {"max_num_seqs": 6, "num_kv_blocks": 100, **loop}
    with open_streams(
        folder, drafter=unreliable_drafter(alone), speculation=speculation, enable_prefix_caching=caching, **limits
    ) as llm:
        got = run(llm, requests)
    check_equal(got, alone)
    assert got.stats.prompt_tokens_total == alone.stats.prompt_tokens_total
    # Drafts may reach behind a stop string, which is found when the step's tokens have become text.
    assert 0 <= got.stats.generation_tokens_total - alone.stats.generation_tokens_total < 50


@both_loops
@pytest.mark.parametrize("seed", [1, 2])
def test_answers_are_the_same_where_each_request_has_a_setting_of_its_own(seed, loop, folder, requests, alone):
    limits: dict[str, Any] = {"num_kv_blocks": 80, "max_num_batched_tokens": 16, "max_num_seqs": 12, **loop}
    with open_streams(folder, drafter=unreliable_drafter(alone, seed), speculation=4, **limits) as llm:
        got = run_shuffled(llm, with_modes(requests), seed=seed)
    check_equal(got, alone, least_accepted=50)


@both_loops
@pytest.mark.parametrize("limits", [TIGHT, TIGHT | SECOND_POOL], ids=["recomputed", "swapped"])
def test_answers_are_the_same_with_drafts_under_preemption(limits, loop, folder, requests, alone):
    with open_streams(
        folder, drafter=unreliable_drafter(alone), speculation=8, max_num_batched_tokens=64, **limits, **loop
    ) as llm:
        got = run_shuffled(llm, requests, seed=3)
    check_equal(got, alone)
    assert got.stats.num_preemptions_total > 10


@both_loops
def test_answers_are_the_same_with_drafts_when_the_engine_sleeps_in_between(loop, folder, requests, alone):
    steps = itertools.count(1)

    def rest(llm):
        if (step := next(steps)) % 5 == 0:
            llm.sleep(step // 5 % 3)
            told = llm.step()
            llm.wake()
            return told
        return []

    limits = {**TIGHT, **SECOND_POOL, **loop}
    with open_streams(folder, drafter=unreliable_drafter(alone), speculation="auto", **limits) as llm:
        got = run(llm, requests, after_step=rest)
    check_equal(got, alone)


async def test_answers_are_the_same_with_drafts_behind_a_router(folder, requests, alone):
    drafter = unreliable_drafter(alone)
    got = await run_behind_a_router(folder, requests, num_engines=2, drafter=drafter, speculation=5, num_kv_blocks=40)
    check_equal(got, alone, least_accepted=50)


@both_loops
def test_answers_are_the_same_with_drafts_when_requests_move_from_engine_to_engine(loop, folder, requests, alone):
    settings = {"speculation": "auto", **ROOMY, **loop}
    got = run_moving(folder, requests, steps_each=3, drafter=unreliable_drafter(alone), **settings)
    for name, expected in alone.outputs.items():
        assert got.outputs[name].outputs == expected.outputs, name
    assert got.stats.accepted_draft_tokens_total > 50


@both_loops
def test_requests_have_drafts_that_ask_for_them_where_the_engine_is_off(loop, folder, requests, alone):
    with open_streams(folder, drafter=unreliable_drafter(alone), **ROOMY, **loop) as llm:
        got = run(llm, with_modes(requests))
    check_equal(got, alone, least_accepted=50)


def test_overlapped_steps_with_drafts_are_fewer(folder, requests, alone):
    def num_steps(speculation):
        drafter = unreliable_drafter(alone)
        with open_streams(folder, drafter=drafter, speculation=speculation, max_num_seqs=4, **OVERLAPPED) as llm:
            return run(llm, requests).stats.num_steps_total

    assert num_steps(5) < 0.8 * num_steps("off")


def test_a_static_engine_answers_the_same_without_drafts(folder, requests, alone):
    settings = {"engine": "static", "max_num_seqs": 8, "speculation": "auto"}
    with open_streams(folder, drafter=unreliable_drafter(alone), **settings) as llm:
        got = run(llm, with_modes(requests))
    for name, expected in alone.outputs.items():
        assert got.outputs[name].outputs == expected.outputs, name
    assert got.stats.num_drafts_total == 0


@both_loops
@pytest.mark.parametrize("limits", [ROOMY, TIGHT | SECOND_POOL], ids=["roomy", "swapped"])
def test_answers_are_the_same_with_drafts_of_the_model_itself(limits, loop, folder, requests, alone):
    with open_streams(folder, draft_model=str(folder), speculation="auto", **limits, **loop) as llm:
        got = run_shuffled(llm, with_modes(requests), seed=4)
    check_equal(got, alone, least_accepted=50 if loop else 100)


def test_answers_are_the_same_with_drafts_of_another_model(folder, requests, alone, tmp_path):
    draft = make_tiny_llama(tmp_path, vocab_size=VOCAB_SIZE, hidden=32, layers=1, heads=2, kv_heads=1, seed=9)
    with open_streams(folder, draft_model=str(draft), speculation="auto", max_num_seqs=6, num_kv_blocks=100) as llm:
        got = run(llm, requests)
    check_equal(got, alone, least_accepted=0)


@both_loops
@pytest.mark.parametrize("mode", [{}, {"quantization": "int8-dynamic", "kv_cache_dtype": "int8"}], ids=str)
def test_answers_are_the_same_with_drafts_in_bfloat16(mode, loop, folder, requests):
    settings = {"dtype": "bfloat16", "deterministic": True, **mode}
    with open_llm(folder, enable_prefix_caching=False, **settings, **ROOMY) as llm:
        alone = run(llm, requests)
    drafter = unreliable_drafter(alone)
    with open_streams(folder, drafter=drafter, speculation="auto", max_num_seqs=4, **settings, **loop) as llm:
        got = run(llm, requests)
    check_equal(got, alone)
