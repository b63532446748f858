"""Warm-up steps before the first request."""

import pytest

from rayinfer import LLM, SamplingParams
from rayinfer.engine.worker.padding import Padding
from rayinfer.engine.worker.warm_up import warm_up_plans
from support.tiny_models.tiny_checkpoints import make_tiny_llama

SETTINGS = {"dtype": "float32", "block_size": 8, "num_kv_blocks": 16, "max_num_seqs": 2}
PARAMS = [SamplingParams(temperature=0.0, max_tokens=9), SamplingParams(temperature=1.0, seed=3, max_tokens=9)]


@pytest.mark.parametrize(
    ("longest", "sizes"),
    [(1, [1, 1]), (2, [1, 1, 2]), (3, [1, 1, 2, 3]), (8, [1, 1, 2, 4, 8]), (20, [1, 1, 2, 4, 8, 16, 20])],
)
def test_prompts_grow_to_the_longest_that_a_step_may_have(longest, sizes):
    plans = list(warm_up_plans(longest, longest, 1, 16, Padding()))[: len(sizes)]
    assert [plan.num_tokens for plan in plans] == sizes
    assert [plan.seq_lens.tolist() for plan in plans] == [[size] for size in sizes]
    assert {slot for plan in plans for slot in plan.slot_mapping.tolist()} == {-1}
    assert [plan.new_requests[0].params.temperature > 0 for plan in plans] == [False] + [True] * (len(sizes) - 1)


def test_steps_larger_than_the_longest_prompt_have_several():
    plans = [plan for plan in warm_up_plans(70, 32, 1, 16, Padding()) if plan.num_tokens >= 64]
    assert [plan.seq_lens.tolist() for plan in plans] == [[32, 32], [32, 32, 6]]
    assert plans[-1].positions.tolist() == [*range(32), *range(32), *range(6)]
    assert plans[-1].samples.tolist() == [False, False, True]
    assert plans[-1].cu_seqlens_q.tolist() == [0, 32, 64, 70]


def test_as_many_requests_sample_as_rows_there_are_with_penalties_and_without():
    plans = [plan for plan in warm_up_plans(8, 8, 6, 16, Padding()) if plan.samples.all() and plan.num_requests > 1]
    assert [plan.num_requests for plan in plans] == [2, 2, 4, 4, 6, 6]
    assert [plan.new_requests[0].params.has_penalties for plan in plans] == [False, True] * 3


def test_requests_find_nothing_of_what_was_computed_before_them(tmp_path):
    folder, prompts = make_tiny_llama(tmp_path), [[5, 6, 7], [30, 31] * 9]
    with LLM(str(folder), **SETTINGS) as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(prompts, PARAMS, use_tqdm=False)]
    with LLM(str(folder), **SETTINGS) as llm:
        (spare,) = llm.engine.scheduler.blocks.allocate(1)
        for plan in warm_up_plans(50, 40, 2, 8, Padding.in_block(spare, 8)):
            assert len(llm.engine.executor.submit(plan).result().token_ids) == plan.samples.sum()
        assert [output.outputs[0].token_ids for output in llm.generate(prompts, PARAMS, use_tqdm=False)] == expected
