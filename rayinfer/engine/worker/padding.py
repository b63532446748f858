"""Padding of steps to a fixed size, for static shapes and captured graphs."""

from dataclasses import dataclass

import numpy as np

from rayinfer.engine.plan.step_plan import StepPlan


@dataclass(frozen=True, slots=True)
class Padding:
    """Values of padding requests: by default such that no kernel reads or writes anything for them."""

    slot: int = -1
    context_length: int = 0
    block: int = 0

    @staticmethod
    def in_block(block: int, block_size: int) -> "Padding":
        """Write padding tokens to a scratch block, for kernels that need a valid one."""
        return Padding(slot=block * block_size, context_length=1, block=block)


def empty_plan(num_requests: int, num_tokens: int, num_blocks: int, *, has_windows: bool = False) -> StepPlan:
    """Allocate the arrays of a plan of this size, with block tables of `num_blocks`; `has_windows`: two of them."""
    return StepPlan(
        step=0,
        rows=np.zeros(num_requests, np.int64),
        token_ids=np.zeros(num_tokens, np.int32),
        positions=np.zeros(num_tokens, np.int64),
        slot_mapping=np.zeros(num_tokens, np.int64),
        cu_seqlens_q=np.zeros(num_requests + 1, np.int32),
        seq_lens=np.zeros(num_requests, np.int32),
        block_tables=np.zeros((num_requests, num_blocks), np.int32),
        samples=np.zeros(num_requests, np.bool_),
        uses_last_sampled=np.zeros(num_requests, np.bool_),
        window_tables=np.zeros((num_requests, num_blocks), np.int32) if has_windows else None,
        window_slot_mapping=np.zeros(num_tokens, np.int64) if has_windows else None,
    )


def pad_plan(plan: StepPlan, target: StepPlan, padding: Padding, row: int) -> None:
    """Copy a plan to the front of a larger one's arrays, and fill the rest with padding requests of this row.

    The padding requests share the remaining tokens evenly and sample nothing.
    """
    count, num_tokens = plan.num_requests, plan.num_tokens
    assert target.uses_last_sampled is not None
    target.rows[:count] = plan.rows
    target.seq_lens[:count] = plan.seq_lens
    target.samples[:count] = plan.samples
    target.uses_last_sampled[:count] = False if plan.uses_last_sampled is None else plan.uses_last_sampled
    target.cu_seqlens_q[: count + 1] = plan.cu_seqlens_q
    target.block_tables[:count, : plan.block_tables.shape[1]] = plan.block_tables
    target.token_ids[:num_tokens] = plan.token_ids
    target.positions[:num_tokens] = plan.positions
    target.slot_mapping[:num_tokens] = plan.slot_mapping
    _pad_windows(plan, target, padding)
    num_more = target.num_requests - count
    if not num_more:
        return
    each, rest = divmod(target.num_tokens - num_tokens, num_more)
    counts = np.full(num_more, each)
    counts[:rest] += 1
    target.rows[count:] = row
    target.seq_lens[count:] = counts * padding.context_length
    target.samples[count:] = False
    target.uses_last_sampled[count:] = False
    counts.cumsum(out=counts)
    target.cu_seqlens_q[count + 1 :] = num_tokens + counts
    target.block_tables[count:] = padding.block
    target.token_ids[num_tokens:] = 0
    target.positions[num_tokens:] = 0
    target.slot_mapping[num_tokens:] = padding.slot


def _pad_windows(plan: StepPlan, target: StepPlan, padding: Padding) -> None:
    if target.window_tables is None or target.window_slot_mapping is None:
        return
    if plan.window_tables is None or plan.window_slot_mapping is None:
        assert not plan.num_requests, "a step without the tables of sliding-window layers"
        target.window_tables[:] = padding.block
        target.window_slot_mapping[:] = padding.slot
        return
    count, width = plan.window_tables.shape
    target.window_tables[:count, :width] = plan.window_tables
    target.window_tables[count:] = padding.block
    target.window_slot_mapping[: plan.num_tokens] = plan.window_slot_mapping
    target.window_slot_mapping[plan.num_tokens :] = padding.slot
