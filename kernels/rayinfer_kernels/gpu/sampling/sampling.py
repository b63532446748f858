"""Token of every row, from its scores and without sorting them: three launches for a step, each one pass at most.

The first finds the best of each part of a row, and where masks forbid tokens it writes the row without them, which the
others read. The second gathers the candidates, tokens above a cut, and weighs the
others; where nothing is truncated it weighs the row's blocks. The third has a program for each row, which searches the
candidates for the thresholds of top-k and top-p and draws, or searches the whole row if the candidates do not fit or
cannot be proven to be enough. Sums are float64 in one fixed order, and quotients and weights are rounded as exactly as
on a CPU, so that a GPU draws the same tokens; the rules are those of `reference/sampling.py`.
"""

import torch

from rayinfer_kernels.gpu.argmax import best_by_lane, best_of
from rayinfer_kernels.gpu.language import (
    gdc_launch_dependents,
    gdc_wait,
    next_power_of_2,
    supports_pdl,
    tl,
    triton,
)
from rayinfer_kernels.gpu.sampling.candidates import candidates_kernel, gather_candidates
from rayinfer_kernels.gpu.sampling.score_weights import UNLIKELY, ordered, quotient
from rayinfer_kernels.gpu.sampling.search import choose_index, draw
from rayinfer_kernels.gpu.tuning import (
    CANDIDATES_MAX_REGISTERS,
    CHOICE_WARPS,
    SAMPLING_WARPS,
    SamplingTuning,
)
from rayinfer_kernels.implementation import RowMasks, SampledRows

TUNING = SamplingTuning()
_LOWEST_KEY = tl.constexpr(-(2**31))


def sample_rows(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniform: torch.Tensor,
    is_greedy: torch.Tensor,
    masks: RowMasks | None = None,
    *,
    tuning: SamplingTuning = TUNING,
) -> SampledRows:
    """See `ops.sample_rows`."""
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    num_rows, width = logits.shape
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    is_invalid = torch.empty(num_rows, dtype=torch.bool, device=logits.device)
    if num_rows == 0:
        return SampledRows(token_ids, is_invalid)
    grid, blocks_per_part = _grid_of_parts(num_rows, width, tuning)
    buffers = {
        name: torch.empty(each.shape, dtype=each.dtype, device=logits.device)
        for name, each in _buffers(num_rows, width, logits.dtype, tuning).items()
    }
    pdl = supports_pdl(logits.device)
    common = {"width": width, "block": tuning.block, "PDL": pdl, "launch_pdl": pdl}
    best = (buffers["bests"], buffers["ids"])
    found = [buffers[name] for name in ("cuts", "counts", "others", "candidate_ids", "masses")]
    num_maxima, num_blocks, capacity = (buffers[name].shape[-1] for name in ("maxima", "masses", "candidates"))
    allowed = logits if masks is None else torch.empty((num_rows, width), dtype=logits.dtype, device=logits.device)
    masks_of_rows, num_masks = _mask_arguments(masks, token_ids)
    _best_kernel[grid](
        *(logits, *best, buffers["maxima"], logits.stride(0), blocks_per_part, allowed, *masks_of_rows),
        **{"num_masks": num_masks, "num_maxima": num_maxima, "num_warps": SAMPLING_WARPS},
        **common,
    )
    logits = allowed
    parts = {"num_blocks": num_blocks, "max_parts": tuning.max_row_parts, "capacity": capacity}
    candidates_kernel[grid](
        *(logits, temperature, top_k, top_p, min_p, is_greedy, *best, buffers["maxima"], *found),
        *(logits.stride(0), blocks_per_part, num_maxima),
        max_maxima=max(tuning.block, next_power_of_2(grid[1])),
        maxnreg=CANDIDATES_MAX_REGISTERS,
        num_warps=SAMPLING_WARPS,
        **parts,
        **common,
    )
    _choose_kernel[(num_rows,)](
        *(logits, temperature, top_k, top_p, min_p, uniform, is_greedy, *best, *found),
        *(buffers["candidates"], token_ids, is_invalid, logits.stride(0), grid[1]),
        mass_blocks=next_power_of_2(num_blocks),
        row_block=tuning.choice_block,
        num_row_blocks=next_power_of_2(-(-width // tuning.choice_block)),
        candidate_block=tuning.candidate_block,
        num_candidate_blocks=next_power_of_2(-(-capacity // tuning.candidate_block)),
        num_warps=CHOICE_WARPS,
        **parts,
        **common,
    )
    return SampledRows(token_ids, is_invalid)


def _mask_arguments(masks: RowMasks | None, unused: torch.Tensor) -> tuple[tuple[torch.Tensor | int, ...], int]:
    """Return the kernel's lines, bits, their stride and number, and its constant `num_masks`."""
    if masks is None:
        return (unused, unused, 0, 0), 0
    lines, bits = masks.lines, masks.bits if masks.bits.stride(-1) == 1 else masks.bits.contiguous()
    return (lines, bits, bits.stride(0), len(lines)), next_power_of_2(max(1, len(lines)))


def sampling_bytes(num_rows: int, vocab_size: int) -> int:
    """Return the memory that `sample_rows` takes beside its results."""
    return sum(each.nbytes for each in _buffers(num_rows, vocab_size, torch.float32, TUNING).values())


def _grid_of_parts(num_rows: int, width: int, tuning: SamplingTuning) -> tuple[tuple[int, int], int]:
    """Return the numbers of rows, of parts of each row, and of blocks in a part."""
    num_blocks = -(-width // tuning.block)
    blocks_per_part = -(-num_blocks // tuning.row_parts_for(num_rows, num_blocks))
    return (num_rows, -(-num_blocks // blocks_per_part)), blocks_per_part


def _buffers(num_rows: int, width: int, dtype: torch.dtype, tuning: SamplingTuning) -> dict[str, torch.Tensor]:
    """Return the shapes and types, without memory, of the buffers passed between launches."""
    grid, _ = _grid_of_parts(num_rows, width, tuning)
    num_maxima = max(1, tuning.block // next_power_of_2(grid[1]))
    capacity = min(tuning.max_candidates, width)

    def shape(dtype: torch.dtype, *sizes: int) -> torch.Tensor:
        return torch.empty(sizes, dtype=dtype, device="meta")

    return {
        "bests": shape(torch.float32, *grid),
        "ids": shape(torch.int32, *grid),
        "maxima": shape(dtype, *grid, num_maxima),
        "cuts": shape(torch.float32, num_rows),
        "counts": shape(torch.int32, *grid),
        "others": shape(torch.float64, *grid),
        "candidate_ids": shape(torch.int32, *grid, capacity),
        "masses": shape(torch.float64, num_rows, -(-width // tuning.block)),
        "candidates": shape(torch.float32, num_rows, capacity),
    }


@triton.jit(do_not_specialize=["blocks_per_part", "num_lines"])
def _best_kernel(
    logits,
    part_bests,  # [num_rows, num_parts]
    part_ids,
    maxima,  # [num_rows, num_parts, num_maxima]
    row_stride,
    blocks_per_part,
    allowed,  # [num_rows, width]: the scores with -inf for what masks forbid, written if there are masks
    lines,  # [num_lines]: the row of each mask
    bits,  # [num_lines, words]
    bits_stride,
    num_lines,
    width: tl.constexpr,
    block: tl.constexpr,
    num_masks: tl.constexpr,  # a power of two from num_lines on; 0: no masks
    num_maxima: tl.constexpr,
    PDL: tl.constexpr,
):
    """The greatest score of a part of a row and its token, and the greatest scores of `num_maxima` pieces of it."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    part = row * tl.num_programs(1) + tl.program_id(1)
    first = tl.program_id(1) * blocks_per_part * block
    last = tl.minimum(first + blocks_per_part * block, width)
    if num_masks > 0:
        masks = tl.arange(0, num_masks)
        mask = tl.max(tl.where(tl.load(lines + masks, mask=masks < num_lines, other=-1) == row, masks, -1), 0)
        words = bits + mask.to(tl.int64) * bits_stride
        write_allowed(logits + row * row_stride, allowed + row * width, words, mask, first, last, width, block)
        tl.debug_barrier()  # what all threads stored is there before one of them reads it
        bests, ids = best_by_lane(allowed + row * width, first, last, width, block)
    else:
        bests, ids = best_by_lane(logits + row * row_stride, first, last, width, block)
    best, token_id = best_of(bests, ids)
    tl.store(part_bests + part, best)
    tl.store(part_ids + part, token_id)
    together = tl.max(tl.reshape(bests, (num_maxima, block // num_maxima)), 1)
    tl.store(maxima + part * num_maxima + tl.arange(0, num_maxima), together.to(maxima.dtype.element_ty))


@triton.jit
def write_allowed(scores, allowed, words, mask, first, last, width, block: tl.constexpr):
    """Write a part of a row with -inf for what its mask forbids; a negative `mask` is none."""
    for start in range(first, last, block):
        columns = start + tl.arange(0, block)
        is_within = columns < width
        x = tl.load(scores + columns, mask=is_within).to(tl.float32)
        word = tl.load(words + (columns >> 5), mask=is_within & (mask >= 0), other=-1)
        x = tl.where(((word >> (columns & 31)) & 1) != 0, x, float("-inf"))
        tl.store(allowed + columns, x.to(allowed.dtype.element_ty), mask=is_within)


@triton.jit(do_not_specialize=["num_parts"])
def _choose_kernel(
    logits,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    uniforms,
    greedy_rows,
    part_bests,
    part_ids,
    cuts,
    counts,
    others,
    candidate_ids,
    masses,
    candidates,  # [num_rows, capacity]
    token_ids,
    invalid_rows,
    row_stride,
    num_parts,
    width: tl.constexpr,
    block: tl.constexpr,
    num_blocks: tl.constexpr,
    mass_blocks: tl.constexpr,
    row_block: tl.constexpr,
    num_row_blocks: tl.constexpr,
    candidate_block: tl.constexpr,
    num_candidate_blocks: tl.constexpr,
    max_parts: tl.constexpr,
    capacity: tl.constexpr,
    PDL: tl.constexpr,
):
    """A row's token: the best, or drawn from its candidates, from all of its tokens, or by the masses of its blocks."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    parts, here = tl.arange(0, max_parts), row * num_parts
    is_part = parts < num_parts
    bests = tl.load(part_bests + here + parts, mask=is_part, other=float("-inf"))
    best, token_id = best_of(bests, tl.load(part_ids + here + parts, mask=is_part, other=width))
    is_invalid = (best - best) != 0.0
    token_id = tl.where(is_invalid, 0, token_id)
    if (tl.load(greedy_rows + row) == 0) & (is_invalid == 0):
        scores = logits + row * row_stride
        temperature = tl.load(temperatures + row).to(tl.float32)
        top_k = tl.load(top_ks + row).to(tl.int32)
        top_p = tl.load(top_ps + row).to(tl.float64)
        min_p = tl.load(min_ps + row).to(tl.float32)
        uniform = tl.load(uniforms + row).to(tl.float64)
        inverse = tl.div_rn(1.0, temperature)
        highest = quotient(best, temperature, inverse)
        has_top_k = top_k < width
        if has_top_k | (top_p < 1.0):
            is_proven = False
            total = tl.sum(tl.load(counts + here + parts, mask=is_part, other=0), 0)
            if total <= capacity:
                kept, kept_ids = candidates + row * capacity, candidate_ids + here * capacity
                gather_candidates(scores, kept, kept_ids, counts + here, total, num_parts, capacity, candidate_block)
                tl.debug_barrier()  # what all threads stored is there before one of them reads it
                other = tl.sum(tl.load(others + here + parts, mask=is_part, other=0.0), 0)
                highest_other = ordered(quotient(tl.load(cuts + row), temperature, inverse))
                index, is_proven = choose_index(
                    kept, total, other, highest_other, has_top_k, temperature, top_k, top_p, min_p, uniform, highest,
                    candidate_block, num_candidate_blocks,
                )  # fmt: skip
                token_id = tl.load(kept_ids + tl.minimum(index, capacity - 1))
            if not is_proven:
                token_id, _ = choose_index(
                    scores, width, tl.zeros((), tl.float64), _LOWEST_KEY, has_top_k, temperature, top_k, top_p, min_p,
                    uniform, highest, row_block, num_row_blocks,
                )  # fmt: skip
        else:
            blocks, lowest = tl.arange(0, mass_blocks), ordered(highest - UNLIKELY)
            sums = tl.load(masses + row * num_blocks + blocks, mask=blocks < num_blocks, other=0.0)
            token_id = draw(scores, width, sums, temperature, lowest, 0, highest, min_p, uniform, block, mass_blocks)
    tl.store(token_ids + row, token_id.to(tl.int64))
    tl.store(invalid_rows + row, is_invalid)
