"""Candidates of a row: the few tokens above a cut, which should be all that top-k and top-p keep.

The cut is estimated from the greatest scores of some thousand subsets of the row; whether it was low enough is proven
when the candidates are searched.
"""

from rayinfer_kernels.gpu.argmax import best_of
from rayinfer_kernels.gpu.language import gdc_launch_dependents, gdc_wait, tl, triton
from rayinfer_kernels.gpu.sampling.score_weights import LEAST_WEIGHT, UNLIKELY, load_scores, quotient, weight_of

_NUM_HALVINGS = tl.constexpr(12)
_TOGETHER = tl.constexpr(4)  # neighbors whose mass is summed first: they are one thread's, which saves registers
_MASS_MARGIN = tl.constexpr(2.0**-6)  # parts' greatest scores below the cut stand for more mass than their own
_CUT_MARGIN = tl.constexpr(2.0**-20)  # so that dividing by the temperature ties none below the cut with one above


@triton.jit
def find_cut(maxima, best, temperature, top_k, top_p, has_top_k, least_maxima, most_maxima):
    """Return the lowest score of candidates, found by bisection among the `maxima` of parts of the row.

    With top-k: one that at least top_k of the maxima reach. Without: one below which little of the maxima's mass lies,
    and that between `least_maxima` and `most_maxima` of them reach. If no score does, one so low that it has no weight.
    """
    reach = tl.maximum(temperature * UNLIKELY, tl.abs(best) * _CUT_MARGIN)
    nothing = best - reach * 1.0625
    weights = tl.where(maxima > best - reach, tl.exp((maxima - best) / temperature), 0.0)
    budget = (1.0 - top_p.to(tl.float32)) * tl.sum(weights, 0) * _MASS_MARGIN
    low = tl.min(tl.where(maxima > best - reach, maxima, best), 0)
    high = best
    is_found = False
    # The first time the lower end itself is tried.
    for halving in range(_NUM_HALVINGS):
        middle = tl.where(halving == 0, low, low + (high - low) * 0.5)
        is_above = maxima >= middle
        num_above = tl.sum(is_above.to(tl.int32), 0)
        below = tl.sum(tl.where(is_above, 0.0, weights), 0)
        is_nucleus = ((below <= budget) & (num_above >= least_maxima)) | (num_above >= most_maxima)
        is_enough = tl.where(has_top_k, num_above >= top_k, is_nucleus)
        is_found = is_found | is_enough
        low = tl.where(is_enough, middle, low)
        high = tl.where(is_enough, high, middle)
    return tl.where(is_found, low - tl.abs(low) * _CUT_MARGIN - 1e-30, nothing)


@triton.jit(do_not_specialize=["blocks_per_part", "num_maxima"])
def candidates_kernel(
    logits,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    greedy_rows,
    part_bests,  # [num_rows, num_parts]
    part_ids,
    maxima,  # [num_rows, num_parts, num_maxima]
    cuts,  # [num_rows]
    counts,  # [num_rows, num_parts]: candidates found, also those that did not fit
    others,  # [num_rows, num_parts]: the mass of what is no candidate
    candidate_ids,  # [num_rows, num_parts, capacity]
    masses,  # [num_rows, num_blocks], only where neither top-k nor top-p truncates
    row_stride,
    blocks_per_part,
    num_maxima,
    width: tl.constexpr,
    block: tl.constexpr,
    num_blocks: tl.constexpr,
    max_maxima: tl.constexpr,  # of a row
    max_parts: tl.constexpr,
    capacity: tl.constexpr,
    PDL: tl.constexpr,
):
    """Find the candidates of one part of a row, and what the other tokens weigh; or what each block weighs."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    part, num_parts = tl.program_id(1), tl.num_programs(1)
    parts = tl.arange(0, max_parts)
    bests = tl.load(part_bests + row * num_parts + parts, mask=parts < num_parts, other=float("-inf"))
    best, _ = best_of(bests, parts)
    if (tl.load(greedy_rows + row) == 0) & ((best - best) == 0.0):
        temperature = tl.load(temperatures + row).to(tl.float32)
        inverse = tl.div_rn(1.0, temperature)
        top_k = tl.load(top_ks + row).to(tl.int32)
        top_p = tl.load(top_ps + row).to(tl.float64)
        highest = quotient(best, temperature, inverse)
        has_top_k = top_k < width
        scores = logits + row * row_stride
        first, last = part * blocks_per_part, tl.minimum((part + 1) * blocks_per_part, num_blocks)
        if has_top_k | (top_p < 1.0):
            offsets = tl.arange(0, max_maxima)
            known = maxima + row * num_parts * num_maxima + offsets
            found = tl.load(known, mask=offsets < num_parts * num_maxima, other=float("-inf")).to(tl.float32)
            num_known = num_parts * num_maxima
            least, most = num_known // 8, num_known * 31 // 32
            cut = find_cut(found, best, temperature, top_k, top_p, has_top_k, least, most)
            here = row * num_parts + part
            num_found = 0
            other = tl.zeros((block // _TOGETHER,), tl.float64)
            for index in range(first, last):
                x = load_scores(scores, index * block, width, block).to(tl.float32)
                is_candidate = x >= cut
                if not has_top_k:
                    weights = weight_of(quotient(x, temperature, inverse), highest)
                    weights = tl.where(is_candidate, 0.0, weights).to(tl.float64)
                    other += tl.sum(tl.reshape(weights, (block // _TOGETHER, _TOGETHER)), 1)
                num_here = tl.sum(is_candidate.to(tl.int32), 0)
                if num_here > 0:
                    free = num_found + tl.cumsum(is_candidate.to(tl.int32), 0) - 1
                    fits = is_candidate & (free < capacity)
                    tl.store(candidate_ids + here * capacity + free, index * block + tl.arange(0, block), mask=fits)
                num_found += num_here
            tl.store(counts + here, num_found)
            tl.store(others + here, tl.sum(other, 0))
            tl.store(cuts + row, cut)
        else:
            least_kept = tl.maximum(tl.load(min_ps + row).to(tl.float32), LEAST_WEIGHT)
            ahead = load_scores(scores, first * block, width, block)
            for index in range(first, last):
                x = ahead.to(tl.float32)
                ahead = load_scores(scores, (index + 1) * block, width, block)
                weights = weight_of(quotient(x, temperature, inverse), highest, least_kept)
                tl.store(masses + row * num_blocks + index, tl.sum(weights.to(tl.float64), 0))


@triton.jit
def gather_candidates(
    scores, candidates, candidate_ids, counts, total, num_parts, capacity: tl.constexpr, block: tl.constexpr
):
    """Put the candidates of all parts of a row together: their scores, and their ids behind those of the first part.

    `total` is at most `capacity`.
    """
    for start in range(0, total, block):
        offsets = start + tl.arange(0, block)
        source = offsets  # in the first part, and a part after the other behind it
        end = 0
        for part in range(num_parts):
            end += tl.load(counts + part)
            source = tl.where(offsets >= end, (part + 1) * capacity + offsets - end, source)
        is_found = offsets < total
        token_ids = tl.load(candidate_ids + source, mask=is_found, other=0)
        tl.store(candidates + offsets, tl.load(scores + token_ids, mask=is_found).to(tl.float32), mask=is_found)
        tl.store(candidate_ids + offsets, token_ids, mask=is_found & (source != offsets))
