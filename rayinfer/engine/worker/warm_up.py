"""Warm-up steps of a GPU engine: dummy prompts of a few sizes, to compile its kernels."""

from collections.abc import Iterator

import numpy as np
from msgspec import structs

from rayinfer.engine.plan.step_plan import NewRequestData, StepPlan
from rayinfer.engine.worker.padding import Padding, empty_plan
from rayinfer.sampling_params import SamplingParams

_GREEDY = SamplingParams(temperature=0.0)
_DRAWN = SamplingParams(temperature=0.8, top_p=0.9, top_k=20, min_p=0.01)
_PENALIZED = SamplingParams(temperature=0.8, top_p=0.9, presence_penalty=0.1)  # its logits are adjusted in float32


def warm_up_plans(most: int, longest: int, num_rows: int, block_size: int, padding: Padding) -> Iterator[StepPlan]:
    """Yield steps of dummy prompts, from one token to `most`, then steps in which up to `num_rows` requests sample.

    Kernels are tuned by coarse sizes, so powers of two stand for all. No prompt has more than `longest` tokens: larger
    steps have several. Keys and values go to the block of `padding`. All requests use row 0 of the batch, which the
    next request there overwrites.
    """
    yield _prompts([1], _GREEDY, block_size, padding)
    for num_tokens in _powers_up_to(most):
        lengths = np.diff(np.append(np.arange(0, num_tokens, longest), num_tokens)).tolist()
        yield _prompts(lengths, _DRAWN, block_size, padding)
    for count in _powers_up_to(min(num_rows, most)):
        for params in (_DRAWN, _PENALIZED):
            yield _prompts([1] * count, params, block_size, padding, all_sample=True)


def _powers_up_to(most: int) -> list[int]:
    """Return the powers of two below a number, and the number."""
    return [*(1 << power for power in range((most - 1).bit_length())), most]


def _prompts(
    lengths: list[int], params: SamplingParams, block_size: int, padding: Padding, *, all_sample: bool = False
) -> StepPlan:
    """Make a step of prompts of these lengths; the last one samples, or all of them do."""
    new_request = NewRequestData(
        row=0,
        params=params,
        seed=0,
        choice=0,
        prompt_token_ids=np.zeros(max(lengths), np.int32),
        output_token_ids=np.zeros(0, np.int32),
        end_token_ids=(),
    )
    count, num_tokens = len(lengths), sum(lengths)
    return structs.replace(
        empty_plan(count, num_tokens, 0),
        positions=np.concatenate([np.arange(length) for length in lengths]),
        slot_mapping=np.full(num_tokens, padding.slot, np.int64),
        cu_seqlens_q=np.append(0, np.cumsum(lengths)).astype(np.int32),
        seq_lens=np.array(lengths, np.int32),
        block_tables=np.full((count, -(-max(lengths) // block_size)), padding.block, np.int32),
        samples=np.full(count, True) if all_sample else np.arange(count) == count - 1,
        new_requests=(new_request,),
        uses_last_sampled=None,
    )
