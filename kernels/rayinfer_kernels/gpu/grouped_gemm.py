"""Grouped GEMM and weighted combination of its rows, for mixtures of experts."""

import torch

from rayinfer_kernels.gpu.language import dot_dtype, next_power_of_2, tl, triton
from rayinfer_kernels.gpu.rounding import rounded
from rayinfer_kernels.gpu.tuning import ACTIVATION_BLOCK, ACTIVATION_WARPS, grouped_tuning

_TILES_TOGETHER = 8  # of rows that read the same columns at about the same time, so that caches serve both


def grouped_gemm(x: torch.Tensor, weight: torch.Tensor, group_starts: torch.Tensor) -> torch.Tensor:
    """See `ops.grouped_gemm`: where the groups begin is read on the device alone.

    The grid covers the most tiles that so many rows can fall into, however they are spread over the groups.
    """
    x = x if x.stride(-1) == 1 else x.contiguous()
    num_rows, in_features = x.shape
    num_groups, out_features, _ = weight.shape
    out = torch.empty((num_rows, out_features), dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    tuning = grouped_tuning(num_rows, num_groups, x.element_size())
    num_row_tiles = num_rows // tuning.num_rows + min(num_groups, num_rows)
    num_column_tiles = -(-out_features // tuning.num_columns)
    _grouped_kernel[(num_row_tiles * num_column_tiles,)](
        *(x, weight, group_starts, out, num_row_tiles, x.stride(0), weight.stride(0), weight.stride(1)),
        NUM_GROUPS=num_groups,
        GROUPS=next_power_of_2(num_groups),
        IN=in_features,
        OUT=out_features,
        ROWS=tuning.num_rows,
        COLUMNS=tuning.num_columns,
        INPUTS=tuning.num_inputs,
        TOGETHER=_TILES_TOGETHER,
        DOT=dot_dtype(x.dtype),
        num_warps=tuning.num_warps,
        num_stages=tuning.num_stages,
    )
    return out


def moe_combine(rows: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """See `ops.moe_combine`."""
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    (num_tokens, num_choices), width = indices.shape, rows.shape[1]
    out = torch.empty((num_tokens, width), dtype=rows.dtype, device=rows.device)
    if out.numel():
        _combine_kernel[(num_tokens, -(-width // ACTIVATION_BLOCK))](
            *(rows, indices.contiguous(), weights.contiguous(), out, rows.stride(0), width),
            CHOICES=num_choices,
            BLOCK=ACTIVATION_BLOCK,
            num_warps=ACTIVATION_WARPS,
        )
    return out


@triton.jit
def _tile_of(tile, group_starts, NUM_GROUPS: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr):
    """Of a tile of rows its group, its first row, and where its group ends; behind the last tile group NUM_GROUPS."""
    groups = tl.arange(0, GROUPS)
    is_group = groups < NUM_GROUPS
    starts = tl.load(group_starts + groups, mask=is_group, other=0).to(tl.int32)
    ends = tl.load(group_starts + groups + 1, mask=is_group, other=0).to(tl.int32)
    tiles = (ends - starts + ROWS - 1) // ROWS
    tiles_up_to = tl.cumsum(tiles, 0)
    group = tl.sum(((tiles_up_to <= tile) & is_group).to(tl.int32), 0)
    is_ours = groups == group
    first_tile = tl.sum(tl.where(is_ours, tiles_up_to - tiles, 0), 0)
    first_row = tl.sum(tl.where(is_ours, starts, 0), 0) + (tile - first_tile) * ROWS
    return group, first_row, tl.sum(tl.where(is_ours, ends, 0), 0)


@triton.jit(do_not_specialize=["num_row_tiles"])
def _grouped_kernel(
    x,  # [num_rows, IN]
    weight,  # [NUM_GROUPS, OUT, IN]
    group_starts,  # [NUM_GROUPS + 1]
    out,  # [num_rows, OUT]
    num_row_tiles,
    x_stride,
    group_stride,
    weight_stride,
    NUM_GROUPS: tl.constexpr,
    GROUPS: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INPUTS: tl.constexpr,
    TOGETHER: tl.constexpr,
    DOT: tl.constexpr,
):
    # Programs that run at the same time share rows and columns: some tiles of rows with all columns, then the next.
    column_tiles: tl.constexpr = (OUT + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    first = program // (TOGETHER * column_tiles) * TOGETHER
    together = tl.minimum(num_row_tiles - first, TOGETHER)
    within = program % (TOGETHER * column_tiles)
    group, first_row, end = _tile_of(first + within % together, group_starts, NUM_GROUPS, GROUPS, ROWS)
    if group < NUM_GROUPS:
        rows = first_row + tl.arange(0, ROWS)
        columns = within // together * COLUMNS + tl.arange(0, COLUMNS)
        inputs = tl.arange(0, INPUTS)
        row_pointers = x + rows.to(tl.int64)[:, None] * x_stride
        weight_pointers = weight + group.to(tl.int64) * group_stride + columns.to(tl.int64)[None, :] * weight_stride
        sums = tl.zeros((ROWS, COLUMNS), tl.float32)
        for start in range(0, IN, INPUTS):
            at = start + inputs
            is_input = at < IN
            left = tl.load(row_pointers + at[None, :], mask=(rows < end)[:, None] & is_input[None, :], other=0.0)
            right = tl.load(weight_pointers + at[:, None], mask=(columns < OUT)[None, :] & is_input[:, None], other=0.0)
            sums = tl.dot(left.to(DOT), right.to(DOT), sums, input_precision="ieee")
        pointers = out + rows.to(tl.int64)[:, None] * OUT + columns[None, :]
        is_result = (rows < end)[:, None] & (columns < OUT)[None, :]
        tl.store(pointers, rounded(sums, out.dtype.element_ty), mask=is_result)


@triton.jit
def _combine_kernel(rows, indices, weights, out, row_stride, width, CHOICES: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_within = columns < width
    total = tl.zeros((BLOCK,), tl.float32)
    for choice in tl.static_range(CHOICES):
        row = tl.load(indices + token * CHOICES + choice).to(tl.int64)
        weight = tl.load(weights + token * CHOICES + choice).to(tl.float32)
        total += tl.load(rows + row * row_stride + columns, mask=is_within, other=0.0).to(tl.float32) * weight
    tl.store(out + token * width + columns, rounded(total, out.dtype.element_ty), mask=is_within)
