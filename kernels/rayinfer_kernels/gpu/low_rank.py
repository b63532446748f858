"""Low-rank terms of adapters, in two launches: rows by A into float32, then those by B onto the layer's outputs.

Rows of a step are grouped by adapter into tiles, as in SGMV (Punica, Chen et al. 2023), so any number of adapters costs
two launches. Rows without an adapter are in no tile: nothing is written to them.
"""

import torch

from rayinfer_kernels.gpu.language import dot_dtype, next_power_of_2, tl, triton
from rayinfer_kernels.gpu.rounding import rounded
from rayinfer_kernels.gpu.tuning import LOW_RANK_TILE_ROWS, MIN_DOT_INPUTS, low_rank_tuning
from rayinfer_kernels.low_rank import NUMBERS_PER_PART, LowRank

_MAX_RANKS = 32  # of a part that a program of the first launch multiplies by at once


def add_low_rank_(out: torch.Tensor, x: torch.Tensor, low_rank: LowRank, *, is_gated: bool = False) -> torch.Tensor:
    """See `low_rank.add_low_rank_`; a row's bits do not depend on the other rows."""
    tiles = low_rank.tokens.tiles(LOW_RANK_TILE_ROWS)
    table = low_rank.table.on_device(x.device)
    if not (table.width and len(tiles.spans) and out.numel()):
        return out
    x = x if x.stride(-1) == 1 else x.contiguous()
    max_parts, num_outputs = table.scales.shape[1], out.shape[1]
    if out.stride(-1) != 1 or out.dtype != x.dtype or len(out) != len(x):
        raise ValueError(f"terms of rows {tuple(x.shape)} of {x.dtype} cannot be added to {tuple(out.shape)}")
    products = torch.empty((len(tiles.rows), table.width), dtype=torch.float32, device=x.device)
    ranks = min(_MAX_RANKS, max(MIN_DOT_INPUTS, next_power_of_2(table.max_rank)))
    tuning = low_rank_tuning(x.element_size())
    _shrink_kernel[(len(tiles.spans), max_parts, -(-table.max_rank // ranks))](
        *(x, tiles.rows, tiles.spans, table.numbers, table.scales, products, x.stride(0), table.width),
        NUMBERS=NUMBERS_PER_PART,
        MAX_PARTS=max_parts,
        IN=x.shape[1],
        ROWS=LOW_RANK_TILE_ROWS,
        RANKS=ranks,
        INPUTS=tuning.num_inputs,
        DOT=dot_dtype(x.dtype),
        num_warps=tuning.num_warps,
        num_stages=tuning.num_stages,
    )
    _expand_kernel[(len(tiles.spans), -(-num_outputs // tuning.num_columns))](
        *(products, tiles.rows, tiles.spans, table.numbers, out, table.width, out.stride(0)),
        NUMBERS=NUMBERS_PER_PART,
        MAX_PARTS=max_parts,
        HALF=num_outputs // 2 if is_gated else num_outputs,
        ROWS=LOW_RANK_TILE_ROWS,
        RANKS=MIN_DOT_INPUTS,  # in float32, without tensor cores: more would not fit into registers
        COLUMNS=tuning.num_columns,
        num_warps=tuning.num_warps,
        num_stages=tuning.num_stages,
    )
    return out


@triton.jit
def _tile_of(rows, spans, tile, ROWS: tl.constexpr):
    """Of a tile its slot, the places of its rows among those with an adapter, which are rows, and their numbers."""
    slot = tl.load(spans + 3 * tile)
    places = tl.load(spans + 3 * tile + 1) + tl.arange(0, ROWS)
    is_row = tl.arange(0, ROWS) < tl.load(spans + 3 * tile + 2)
    return slot, places, is_row, tl.load(rows + places, mask=is_row, other=0).to(tl.int64)


@triton.jit(do_not_specialize=["width"])
def _shrink_kernel(
    x,  # [num_rows, IN]
    rows,  # [rows with an adapter], sorted by slot
    spans,  # [num_tiles, 3]: slot, first place, number of rows
    numbers,  # [num_slots, MAX_PARTS, NUMBERS]
    scales,  # [num_slots, MAX_PARTS]
    products,  # [rows with an adapter, width]
    x_stride,
    width,
    NUMBERS: tl.constexpr,
    MAX_PARTS: tl.constexpr,
    IN: tl.constexpr,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    INPUTS: tl.constexpr,
    DOT: tl.constexpr,
):
    slot, places, is_row, row = _tile_of(rows, spans, tl.program_id(0), ROWS)
    entry = slot.to(tl.int64) * MAX_PARTS + tl.program_id(1)
    rank = tl.load(numbers + entry * NUMBERS + 2).to(tl.int32)
    of_rank = tl.program_id(2) * RANKS + tl.arange(0, RANKS)
    if tl.program_id(2) * RANKS < rank:
        a = tl.multiple_of(tl.load(numbers + entry * NUMBERS), 16).to(tl.pointer_type(x.dtype.element_ty))
        first = tl.load(numbers + entry * NUMBERS + 6).to(tl.int32)
        inputs = tl.arange(0, INPUTS)
        sums = tl.zeros((ROWS, RANKS), tl.float32)
        for start in range(0, IN, INPUTS):
            at = start + inputs
            is_input = at < IN
            left = tl.load(
                x + row[:, None] * x_stride + at[None, :], mask=is_row[:, None] & is_input[None, :], other=0.0
            )
            right = tl.load(
                a + of_rank[None, :] * IN + at[:, None], mask=(of_rank < rank)[None, :] & is_input[:, None], other=0.0
            )
            sums = tl.dot(left.to(DOT), right.to(DOT), sums, input_precision="ieee")
        pointers = products + places.to(tl.int64)[:, None] * width + first + of_rank[None, :]
        tl.store(pointers, sums * tl.load(scales + entry), mask=is_row[:, None] & (of_rank < rank)[None, :])


@triton.jit(do_not_specialize=["width"])
def _expand_kernel(
    products,  # [rows with an adapter, width]
    rows,
    spans,
    numbers,
    out,  # [num_rows, HALF], or both halves
    width,
    out_stride,
    NUMBERS: tl.constexpr,
    MAX_PARTS: tl.constexpr,
    HALF: tl.constexpr,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    slot, places, is_row, row = _tile_of(rows, spans, tl.program_id(0), ROWS)
    first_column = tl.program_id(1) * COLUMNS
    columns = first_column + tl.arange(0, COLUMNS)
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    is_changed = columns < 0
    for part in range(MAX_PARTS):
        entry = (slot.to(tl.int64) * MAX_PARTS + part) * NUMBERS
        rank = tl.load(numbers + entry + 2).to(tl.int32)
        half = tl.load(numbers + entry + 5).to(tl.int32) * HALF
        b_width = (tl.load(numbers + entry + 4) - tl.load(numbers + entry + 3)).to(tl.int32)
        begin = half + tl.load(numbers + entry + 3).to(tl.int32)
        end = tl.minimum(begin + b_width, half + HALF)
        if (rank > 0) & (first_column < end) & (first_column + COLUMNS > begin):
            b = tl.multiple_of(tl.load(numbers + entry + 1), 16).to(tl.pointer_type(out.dtype.element_ty))
            first = tl.load(numbers + entry + 6).to(tl.int32)
            is_ours = (columns >= begin) & (columns < end)
            is_changed = is_changed | is_ours
            for start in range(0, rank, RANKS):
                of_rank = start + tl.arange(0, RANKS)
                left = tl.load(
                    products + places.to(tl.int64)[:, None] * width + first + of_rank[None, :],
                    mask=is_row[:, None] & (of_rank < rank)[None, :],
                    other=0.0,
                )
                right = tl.load(
                    b + of_rank[:, None] * b_width + (columns - begin)[None, :],
                    mask=(of_rank < rank)[:, None] & is_ours[None, :],
                    other=0.0,
                )
                sums = tl.dot(left, right.to(tl.float32), sums, input_precision="ieee")
    pointers = out + row[:, None] * out_stride + columns[None, :]
    is_stored = is_row[:, None] & is_changed[None, :]
    total = tl.load(pointers, mask=is_stored, other=0.0).to(tl.float32) + sums
    tl.store(pointers, rounded(total, out.dtype.element_ty), mask=is_stored)
