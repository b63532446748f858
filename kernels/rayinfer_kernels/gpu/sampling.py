"""Which token every row gets: one program per row, from its scores to its token, without sorting them.

The k-th best score, and the score where the most likely tokens' mass reaches top-p, are found by search: a pass over
the row counts, or weighs, what lies above a few pivots, and narrows the range in which the threshold can lie to scores
that the row has. Sums are float64 in one fixed order, and quotients and weights are rounded as exactly as on a CPU, so
that a GPU draws the same tokens; the rules are those of `reference/sampling.py`.
"""

import torch

from rayinfer_kernels.gpu.language import (
    IS_INTERPRETED,
    gdc_launch_dependents,
    gdc_wait,
    next_power_of_2,
    supports_pdl,
    tl,
    triton,
)
from rayinfer_kernels.gpu.tuning import SAMPLING_BLOCK, SAMPLING_WARPS
from rayinfer_kernels.implementation import RowMax, SampledRows

_FLOAT32_ROUNDING = tl.constexpr(2.0**-24)  # a mass this close to top_p has reached it
_BELOW_ONE = tl.constexpr(1.0 - 2.0**-40)  # keeps the most likely token; above what a float64 sum can lose
_LOWEST_EXPONENT = tl.constexpr(-87.0)
_SMALLEST_WEIGHT = tl.constexpr(2.0**-125)
_UNLIKELY = tl.constexpr(88.0)  # so far below the best a token has no weight
_NUM_PIVOTS = tl.constexpr(4)
_LAST_ID = tl.constexpr(2**31 - 1)
_LOWEST_SCORE = tl.constexpr(-1.0e30)  # instead of minus infinity, whose difference with itself is no number
_IS_INTERPRETED = tl.constexpr(IS_INTERPRETED)


def row_max(rows: torch.Tensor) -> RowMax:
    """See `ops.row_max`."""
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    values = torch.empty(len(rows), dtype=torch.float32, device=rows.device)
    indices = torch.empty(len(rows), dtype=torch.int64, device=rows.device)
    if len(rows):
        _row_max_kernel[(len(rows),)](
            *(rows, values, indices, rows.stride(0)),
            width=rows.shape[1],
            block=SAMPLING_BLOCK,
            num_warps=SAMPLING_WARPS,
        )
    return RowMax(values, indices)


def sample_rows(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniform: torch.Tensor,
    is_greedy: torch.Tensor,
) -> SampledRows:
    """See `ops.sample_rows`."""
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    num_rows, vocab_size = logits.shape
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    is_invalid = torch.empty(num_rows, dtype=torch.bool, device=logits.device)
    if num_rows:
        _sample_kernel[(num_rows,)](
            *(logits, temperature, top_k, top_p, min_p, uniform, is_greedy, token_ids, is_invalid),
            logits.stride(0),
            width=vocab_size,
            block=SAMPLING_BLOCK,
            num_blocks=next_power_of_2(-(-vocab_size // SAMPLING_BLOCK)),
            PDL=(pdl := supports_pdl(logits.device)),
            launch_pdl=pdl,
            num_warps=SAMPLING_WARPS,
        )
    return SampledRows(token_ids, is_invalid)


@triton.jit
def _row_max_kernel(rows, values, indices, row_stride, width: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    best, index = _best_of_row(rows + row * row_stride, width, block)
    tl.store(values + row, best)
    tl.store(indices + row, index.to(tl.int64))


@triton.jit
def _sample_kernel(
    logits,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    uniforms,
    greedy_rows,
    token_ids,
    invalid_rows,
    row_stride,
    width: tl.constexpr,
    block: tl.constexpr,
    num_blocks: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    scores = logits + row * row_stride
    best, token_id = _best_of_row(scores, width, block)
    is_invalid = (best - best) != 0.0
    token_id = tl.where(is_invalid, 0, token_id)
    if (tl.load(greedy_rows + row) == 0) & (is_invalid == 0):
        temperature = tl.load(temperatures + row).to(tl.float32)
        top_k = tl.load(top_ks + row).to(tl.int32)
        top_p = tl.load(top_ps + row).to(tl.float64)
        highest = _quotient(best, temperature, tl.div_rn(1.0, temperature))
        lowest = _ordered(highest - _UNLIKELY)  # what is less likely cannot be drawn
        if top_k < width:
            lowest = _kth_best(scores, width, temperature, top_k, lowest, highest, block)
        first_tied = 0
        if top_p < 1.0:
            threshold, num_banned = _nucleus(scores, width, temperature, top_p, lowest, highest, block)
            lowest = threshold
            if num_banned > 0:
                first_tied = _id_of_tied(scores, width, temperature, threshold, num_banned, block)
        min_p = tl.load(min_ps + row).to(tl.float32)
        uniform = tl.load(uniforms + row).to(tl.float64)
        token_id = _draw(scores, width, temperature, lowest, first_tied, highest, min_p, uniform, block, num_blocks)
    tl.store(token_ids + row, token_id.to(tl.int64))
    tl.store(invalid_rows + row, is_invalid)


@triton.jit
def _best_of_row(scores, width: tl.constexpr, block: tl.constexpr):
    """The greatest number in float32, NaN if there is one, and its first place.

    Each place of a block looks through the row by itself, so that many loads are on their way at once.
    """
    places = tl.arange(0, block)
    best = tl.full((block,), float("-inf"), tl.float32)
    found = tl.zeros((block,), tl.int32)
    for start in tl.range(0, width, block, loop_unroll_factor=4):
        x = tl.load(scores + start + places, mask=start + places < width, other=float("-inf")).to(tl.float32)
        # NaN counts as the greatest of all.
        is_better = (x > best) | ((x != x) & (best == best))
        found = tl.where(is_better, start, found)
        best = tl.where(is_better, x, best)
    is_nan = best != best
    has_nan = tl.max(is_nan.to(tl.int32), 0) != 0
    highest = tl.max(tl.where(is_nan, float("-inf"), best), 0)
    first = tl.min(tl.where(tl.where(has_nan, is_nan, best == highest), found + places, _LAST_ID), 0)
    return tl.where(has_nan, float("nan"), highest), first


@triton.jit
def _ordered(x):
    """An integer per number of float32 that is not NaN, in the order of the numbers; both zeros are one."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, -2147483648 - bits, bits)


@triton.jit
def _number(ordered):
    """What `_ordered` was made of."""
    return tl.where(ordered < 0, -2147483648 - ordered, ordered).to(tl.float32, bitcast=True)


@triton.jit
def _weight(scaled, highest):
    """e^(scaled - highest) in float32 to its last digits, and 0 for what float32 has no normal number for."""
    exponent = tl.maximum(scaled - highest, _LOWEST_EXPONENT)
    power = tl.floor(exponent * 1.4426950408889634 + 0.5)
    # ln 2 in two parts, the first so short that its product is exact; the GPU's exp is exact to the digit near 0 only.
    rest = (exponent - power * 0.693359375) + power * 2.12194440e-4
    scale = ((power.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    weight = tl.exp(rest) * scale
    return tl.where(weight > _SMALLEST_WEIGHT, weight, 0.0)


@triton.jit
def _quotient(x, divisor, inverse):
    """x / divisor, rounded to the nearest, for an `inverse` that is (Markstein, Theorem 8.2: two corrections)."""
    if _IS_INTERPRETED:  # it has no fused multiplication and addition
        return tl.div_rn(x, divisor)
    x = tl.maximum(x, _LOWEST_SCORE)
    quotient = x * inverse
    quotient = tl.fma(tl.fma(-quotient, divisor, x), inverse, quotient)
    return tl.fma(tl.fma(-quotient, divisor, x), inverse, quotient)


@triton.jit
def _scaled(scores, start, width: tl.constexpr, temperature, block: tl.constexpr):
    """A block of scores over the temperature, -inf behind the row."""
    within = start + tl.arange(0, block)
    x = tl.load(scores + within, mask=within < width, other=float("-inf")).to(tl.float32)
    return _quotient(x, temperature, tl.div_rn(1.0, temperature))


@triton.jit
def _pivots(low, high):
    """Ordered numbers from low to below high: the quarters between the two numbers, and the middle of their order."""
    place = tl.arange(0, _NUM_PIVOTS)
    first, last = _number(low), _number(high)
    quarters = _ordered(first + (last - first) * (0.25 * (place + 1)))
    middle = (low.to(tl.int64) + (high.to(tl.int64) - low.to(tl.int64)) // 2).to(tl.int32)
    return tl.minimum(tl.maximum(tl.where(place == _NUM_PIVOTS - 1, middle, quarters), low), high - 1)


@triton.jit
def _kth_best(scores, width: tl.constexpr, temperature, top_k, low, highest, block: tl.constexpr):
    """The k-th best scaled score as an ordered number, or `low` if that is greater."""
    high = _ordered(highest)
    while low < high:
        pivots = _pivots(low, high)
        num_above = tl.zeros((_NUM_PIVOTS,), tl.int32)
        least_above = tl.zeros((_NUM_PIVOTS,), tl.int32) + high
        most_below = tl.zeros((_NUM_PIVOTS,), tl.int32) + low
        for start in range(0, width, block):
            keys = _ordered(_scaled(scores, start, width, temperature, block))[None, :]
            is_above = keys > pivots[:, None]
            num_above += tl.sum(is_above.to(tl.int32), 1)
            least_above = tl.minimum(least_above, tl.min(tl.where(is_above, keys, high), 1))
            most_below = tl.maximum(most_below, tl.max(tl.where(is_above, low, keys), 1))
        is_higher = num_above >= top_k
        low = tl.maximum(low, tl.max(tl.where(is_higher, least_above, low), 0))
        high = tl.minimum(high, tl.min(tl.where(is_higher, high, most_below), 0))
    return low


@triton.jit
def _nucleus(scores, width: tl.constexpr, temperature, top_p, kth, highest, block: tl.constexpr):
    """Of the scores from `kth` on the least that top-p keeps, and how many tokens with that score it bans."""
    weighed = tl.zeros((block,), tl.float64)
    for start in range(0, width, block):
        scaled = _scaled(scores, start, width, temperature, block)
        weighed += tl.where(_ordered(scaled) >= kth, _weight(scaled, highest), 0.0).to(tl.float64)
    total = tl.sum(weighed, 0)
    target = tl.minimum(1.0 - top_p + _FLOAT32_ROUNDING, tl.full((), _BELOW_ONE, tl.float64)) * total

    # The threshold is the least score whose mass together with all below it exceeds the target.
    low, high = kth, _ordered(highest)
    below_low = tl.zeros((), tl.float64)  # the mass of what lies below `low`
    while low < high:
        pivots = _pivots(low, high)
        mass = tl.zeros((_NUM_PIVOTS,), tl.float64)  # up to the pivot
        least_above = tl.zeros((_NUM_PIVOTS,), tl.int32) + high
        most_below = tl.zeros((_NUM_PIVOTS,), tl.int32) + low
        for start in range(0, width, block):
            scaled = _scaled(scores, start, width, temperature, block)
            keys = _ordered(scaled)[None, :]
            weights = _weight(scaled, highest).to(tl.float64)[None, :]
            is_above = keys > pivots[:, None]
            mass += tl.sum(tl.where(is_above | (keys < kth), 0.0, weights), 1)
            least_above = tl.minimum(least_above, tl.min(tl.where(is_above, keys, high), 1))
            most_below = tl.maximum(most_below, tl.max(tl.where(is_above, low, keys), 1))
        is_higher = mass <= target
        below_low = tl.maximum(below_low, tl.max(tl.where(is_higher, mass, 0.0), 0))
        low = tl.maximum(low, tl.max(tl.where(is_higher, least_above, low), 0))
        high = tl.minimum(high, tl.min(tl.where(is_higher, high, most_below), 0))
    own = _weight(_number(low), highest).to(tl.float64)
    num_banned = tl.floor((target - below_low) / tl.maximum(own, _SMALLEST_WEIGHT)).to(tl.int32)
    return low, num_banned


@triton.jit
def _id_of_tied(scores, width: tl.constexpr, temperature, threshold, rank, block: tl.constexpr):
    """The id of the token that has `rank` tokens of the threshold's score before it; or of the last of them."""
    num_before = 0
    found = 0
    for start in range(0, width, block):
        tied = (_ordered(_scaled(scores, start, width, temperature, block)) == threshold).to(tl.int32)
        num_here = tl.sum(tied, 0)
        if (num_here > 0) & (num_before <= rank):
            ranks = num_before + tl.cumsum(tied, 0) - 1
            is_before = (tied != 0) & (ranks <= rank)
            found = tl.max(tl.where(is_before, start + tl.arange(0, block), found), 0)
        num_before += num_here
    return found


@triton.jit
def _kept_weights(
    scores, start, width: tl.constexpr, temperature, lowest, first_tied, highest, min_p, block: tl.constexpr
):
    scaled = _scaled(scores, start, width, temperature, block)
    keys = _ordered(scaled)
    is_kept = (keys > lowest) | ((keys == lowest) & (start + tl.arange(0, block) >= first_tied))
    weights = _weight(scaled, highest)
    return tl.where(is_kept & (weights >= min_p), weights, 0.0).to(tl.float64)


@triton.jit
def _draw(
    scores,
    width: tl.constexpr,
    temperature,
    lowest,
    first_tied,
    highest,
    min_p,
    uniform,
    block: tl.constexpr,
    num_blocks: tl.constexpr,
):
    """The first token whose weight, with those of all before it, exceeds `uniform` times the sum of all.

    One pass finds each block's mass, and only the block in which that token lies is looked at again.
    """
    blocks = tl.arange(0, num_blocks)
    masses = tl.zeros((num_blocks,), tl.float64)
    for start in range(0, width, block):
        kept = _kept_weights(scores, start, width, temperature, lowest, first_tied, highest, min_p, block)
        masses = tl.where(blocks == start // block, tl.sum(kept, 0), masses)
    ends = tl.cumsum(masses, 0)
    # A uniform number is 1 - 2^-32 at most; adding in another order may leave the last sum just short of the total.
    target = tl.minimum(uniform * tl.sum(masses, 0), tl.max(ends, 0) * _BELOW_ONE)
    chosen = tl.min(tl.where(ends > target, blocks, num_blocks - 1), 0)
    before = tl.max(tl.where(blocks < chosen, ends, 0.0), 0)
    kept = _kept_weights(scores, chosen * block, width, temperature, lowest, first_tied, highest, min_p, block)
    ends = tl.cumsum(kept, 0)
    rest = tl.minimum(tl.maximum(target - before, 0.0), tl.max(ends, 0) * _BELOW_ONE)
    return tl.min(tl.where(ends > rest, chosen * block + tl.arange(0, block), _LAST_ID), 0)
