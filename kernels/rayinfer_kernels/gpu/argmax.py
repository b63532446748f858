"""Argmax of each row."""

import torch

from rayinfer_kernels.gpu.language import tl, triton
from rayinfer_kernels.gpu.tuning import ARGMAX_BLOCK, ARGMAX_WARPS
from rayinfer_kernels.implementation import ArgmaxResult

LAST_ID = tl.constexpr(2**31 - 1)


def argmax(rows: torch.Tensor, *, block: int = ARGMAX_BLOCK) -> ArgmaxResult:
    """See `ops.argmax`; `block` numbers of a row, a power of two, are looked at together."""
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    values = torch.empty(len(rows), dtype=torch.float32, device=rows.device)
    indices = torch.empty(len(rows), dtype=torch.int64, device=rows.device)
    if len(rows):
        _argmax_kernel[(len(rows),)](
            *(rows, values, indices, rows.stride(0)),
            width=rows.shape[1],
            block=block,
            num_warps=ARGMAX_WARPS,
        )
    return ArgmaxResult(values, indices)


@triton.jit
def _argmax_kernel(rows, values, indices, row_stride, width: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    bests, ids = best_by_lane(rows + row * row_stride, 0, width, width, block)
    best, index = best_of(bests, ids)
    tl.store(values + row, best)
    tl.store(indices + row, index.to(tl.int64))


@triton.jit
def best_of(values, ids):
    """Return the greatest value, NaN if there is one, and the least id of those that have it."""
    is_nan = values != values
    has_nan = tl.max(is_nan.to(tl.int32), 0) != 0
    highest = tl.max(tl.where(is_nan, float("-inf"), values), 0)
    first = tl.min(tl.where(tl.where(has_nan, is_nan, values == highest), ids, LAST_ID), 0)
    return tl.where(has_nan, float("nan"), highest), first


@triton.jit
def best_by_lane(scores, first, last, width, block: tl.constexpr):
    """Return the greatest number in float32 in each lane of a block, NaN if there is one, and its first id.

    Each lane goes through the row by itself, so that many loads are in flight at once.
    """
    lanes = tl.arange(0, block)
    best = tl.full((block,), float("-inf"), tl.float32)
    found = tl.zeros((block,), tl.int32) + first
    for start in tl.range(first, last, block, loop_unroll_factor=4):
        x = tl.load(scores + start + lanes, mask=start + lanes < width, other=float("-inf")).to(tl.float32)
        # NaN counts as the greatest of all.
        is_better = (x > best) | ((x != x) & (best == best))
        found = tl.where(is_better, start, found)
        best = tl.where(is_better, x, best)
    return best, found + lanes
