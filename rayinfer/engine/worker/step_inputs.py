"""Tensors of a step on the device."""

from dataclasses import dataclass

import numpy as np
import torch

from rayinfer.attention.paged_attention import AttentionBatch, WindowTables
from rayinfer.engine.plan.step_plan import StepPlan
from rayinfer.engine.worker.step_upload import Upload
from rayinfer_kernels import ops


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step on the device."""

    token_ids: torch.Tensor  # int32 [num_tokens]
    batch: AttentionBatch
    rows: torch.Tensor  # int64 [num_requests]
    uses_last_sampled: torch.Tensor | None  # bool [num_requests], as in the plan; None if all tokens are known
    sampled_rows: torch.Tensor  # int64, of those that sample, in the plan's order
    # int64, indices of their last tokens, behind one with drafts those of its drafts; None if these are all tokens
    sampled_lines: torch.Tensor | None


def upload_plan(
    plan: StepPlan, upload: Upload, adapters: ops.TokenSlots | None = None, *, returns_all: bool = False
) -> StepInputs:
    """Copy a plan to the device; `adapters` are its tokens' slots, if some have an adapter.

    `returns_all`: hidden states are read of all tokens, not only of those that are sampled behind.
    """
    arrays: list[np.ndarray] = [
        plan.token_ids,
        plan.positions,
        plan.slot_mapping,
        plan.cu_seqlens_q,
        plan.seq_lens,
        plan.block_tables,
    ]
    has_windows = plan.window_tables is not None and plan.window_slot_mapping is not None
    if plan.window_tables is not None and plan.window_slot_mapping is not None:
        arrays += [plan.window_slot_mapping, plan.window_tables]
    arrays.append(plan.rows)
    uses_last_sampled = (
        plan.uses_last_sampled if plan.uses_last_sampled is not None and plan.uses_last_sampled.any() else None
    )
    if uses_last_sampled is not None:
        arrays.append(uses_last_sampled)
    sampling = np.flatnonzero(plan.samples)
    all_sample = len(sampling) == plan.num_tokens  # each request has one token then
    has_outputs = False
    if not all_sample:
        lines = sampled_lines(plan, sampling)
        has_outputs = not returns_all and len(lines) < plan.num_tokens
        arrays += [plan.rows[sampling], lines, *([_cu_outputs(plan)] if has_outputs else [])]
    token_ids, positions, slot_mapping, cu_seqlens_q, seq_lens, block_tables, *others = upload.send(arrays)
    windows = None
    if has_windows:
        windows, others = WindowTables(*others[:2]), others[2:]
    rows, *others = others
    outputs = None
    if has_outputs:
        *others, cu_outputs = others
        outputs = ops.OutputTokens(others[-1], cu_outputs)
    return StepInputs(
        token_ids=token_ids,
        batch=AttentionBatch(
            *(positions, slot_mapping, cu_seqlens_q, seq_lens, block_tables, rows),
            len(plan.rows) if all_sample else num_decodes(plan.cu_seqlens_q),
            adapters,
            windows,
            outputs,
        ),
        rows=rows,
        uses_last_sampled=None if uses_last_sampled is None else others[0],
        sampled_rows=rows if all_sample else others[-2],
        sampled_lines=None if all_sample else others[-1],
    )


def sampled_lines(plan: StepPlan, sampling: np.ndarray) -> np.ndarray:
    """Return the indices of the tokens behind which the requests `sampling` get new ones, in their order."""
    lasts: np.ndarray = plan.cu_seqlens_q[1:][sampling].astype(np.int64) - 1
    if plan.num_drafts is None:
        return lasts
    counts = plan.num_drafts[sampling].astype(np.int64) + 1
    lines: np.ndarray = np.arange(counts.sum()) + np.repeat(lasts + 1 - counts.cumsum(), counts)
    return lines


def _cu_outputs(plan: StepPlan) -> np.ndarray:
    """Add up the numbers of tokens behind which each request gets new ones, from 0 on: int32 [num_requests + 1]."""
    counts = plan.samples.astype(np.int32)
    if plan.num_drafts is not None:
        counts *= plan.num_drafts + 1
    return np.concatenate(([0], counts.cumsum())).astype(np.int32)


def num_decodes(cu_seqlens_q: np.ndarray) -> int:
    """Count the leading requests with one new token each: decoding ones come first in a plan."""
    others = np.flatnonzero(np.diff(cu_seqlens_q) != 1)
    return int(others[0]) if len(others) else len(cu_seqlens_q) - 1


class FutureTokens:
    """The token that each row sampled last, kept on the device."""

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self.by_row = torch.zeros(num_rows, dtype=torch.int64, device=device)

    def keep(self, rows: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Record the rows' new tokens, int64 [number of rows] each."""
        self.by_row[rows] = token_ids

    def resolve(self, inputs: StepInputs) -> torch.Tensor:
        """Return all of the step's tokens, int32 [num_tokens], in-flight ones included."""
        if inputs.uses_last_sampled is None:
            return inputs.token_ids
        newest = self.by_row[inputs.rows].to(inputs.token_ids.dtype)
        if len(inputs.rows) == len(inputs.token_ids):
            return torch.where(inputs.uses_last_sampled, newest, inputs.token_ids)
        lasts = inputs.batch.cu_seqlens_q[1:].long() - 1
        token_ids = inputs.token_ids.clone()
        token_ids[lasts] = torch.where(inputs.uses_last_sampled, newest, token_ids[lasts])
        return token_ids
