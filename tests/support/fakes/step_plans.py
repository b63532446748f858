"""Steps as a scheduler would plan them, from the chunks of their requests."""

from collections.abc import Mapping, Sequence

import numpy as np

from rayinfer.engine.plan.step_plan import NewRequestData, StepPlan


def make_plan(
    chunks: Mapping[int, tuple[int, int]],
    *,
    step: int = 1,
    token_ids: Sequence[int] | None = None,
    samples: Sequence[bool] | None = None,
    first_slot: int = 0,
    num_blocks: int = 1,
    uses_last_sampled: Sequence[bool] | None = None,
    num_drafts: Sequence[int] | None = None,
    new_requests: Sequence[NewRequestData] = (),
) -> StepPlan:
    """Make a plan of {row: (first position, number of tokens)}; every request samples, unless `samples` says so.

    Tokens are 1, 2, ... unless they are given; slots and blocks are numbered on from request to request.
    """
    firsts, counts = np.array(list(chunks.values()), np.int64).reshape(-1, 2).T
    num_tokens = int(counts.sum())
    positions = [np.arange(first, first + count) for first, count in zip(firsts, counts, strict=True)]
    return StepPlan(
        step=step,
        rows=np.array(list(chunks), np.int64),
        token_ids=np.array(range(1, num_tokens + 1) if token_ids is None else token_ids, np.int32),
        positions=np.concatenate([np.zeros(0, np.int64), *positions]),
        slot_mapping=np.arange(num_tokens) + first_slot,
        cu_seqlens_q=np.cumsum([0, *counts]).astype(np.int32),
        seq_lens=(firsts + counts).astype(np.int32),
        block_tables=np.arange(len(chunks) * num_blocks, dtype=np.int32).reshape(len(chunks), num_blocks),
        samples=np.array([True] * len(chunks) if samples is None else samples, np.bool_),
        uses_last_sampled=None if uses_last_sampled is None else np.array(uses_last_sampled),
        num_drafts=None if num_drafts is None else np.array(num_drafts, np.int32),
        new_requests=tuple(new_requests),
    )
