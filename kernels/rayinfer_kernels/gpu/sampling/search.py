"""Choice of a token among scores in the order of their ids: thresholds of top-k and top-p by search, and the draw.

A pass over the scores counts, or weighs, what lies above a few pivots, and narrows the range in which the threshold can
lie to scores that are there. The scores are a whole row, or the best of a row with the mass of all others.
"""

from rayinfer_kernels.gpu.argmax import LAST_ID
from rayinfer_kernels.gpu.language import tl, triton
from rayinfer_kernels.gpu.sampling.score_weights import (
    LEAST_WEIGHT,
    UNLIKELY,
    number_of,
    ordered,
    scaled_at,
    weight_of,
)

_FLOAT32_ROUNDING = tl.constexpr(2.0**-24)  # a mass this close to top_p has reached it
_BELOW_ONE = tl.constexpr(1.0 - 2.0**-40)  # keeps the most likely token; above what a float64 sum can lose
_NUM_PIVOTS = tl.constexpr(4)


@triton.jit
def choose_index(
    scores,
    width,
    others,
    highest_other,
    has_top_k,
    temperature,
    top_k,
    top_p,
    min_p,
    uniform,
    highest,
    block: tl.constexpr,
    num_blocks: tl.constexpr,
):
    """Return the index in `scores` of the chosen token, and whether tokens that are not there can change nothing.

    These have scaled scores up to `highest_other` (an ordered number), and the mass `others` together.
    """
    lowest = ordered(highest - UNLIKELY)  # what is less likely cannot be drawn
    is_whole = highest_other <= lowest
    is_proven = True
    if has_top_k:
        lowest = kth_best(scores, width, temperature, top_k, lowest, highest, block)
        others = tl.zeros((), tl.float64)
        is_proven = is_whole | (lowest > highest_other)
    first_tied = 0
    if top_p < 1.0:
        threshold, num_banned, is_reached = nucleus(scores, width, others, temperature, top_p, lowest, highest, block)
        lowest = threshold
        is_proven = is_proven & is_reached & (is_whole | (lowest > highest_other))
        if num_banned > 0:
            first_tied = index_of_tied(scores, width, temperature, threshold, num_banned, block)
    blocks = tl.arange(0, num_blocks)
    masses = tl.zeros((num_blocks,), tl.float64)
    for start in range(0, width, block):
        kept = kept_weights(scores, start, width, temperature, lowest, first_tied, highest, min_p, block)
        masses = tl.where(blocks == start // block, tl.sum(kept, 0), masses)
    index = draw(scores, width, masses, temperature, lowest, first_tied, highest, min_p, uniform, block, num_blocks)
    return index, is_proven


@triton.jit
def pivots_between(low, high):
    """Ordered numbers from low to below high: the quarters between the two numbers, and the middle of their order."""
    index = tl.arange(0, _NUM_PIVOTS)
    first, last = number_of(low), number_of(high)
    quarters = ordered(first + (last - first) * (0.25 * (index + 1)))
    middle = (low.to(tl.int64) + (high.to(tl.int64) - low.to(tl.int64)) // 2).to(tl.int32)
    return tl.minimum(tl.maximum(tl.where(index == _NUM_PIVOTS - 1, middle, quarters), low), high - 1)


@triton.jit
def kth_best(scores, width, temperature, top_k, low, highest, block: tl.constexpr):
    """Return the k-th best scaled score as an ordered number, or `low` if that is greater."""
    high = ordered(highest)
    while low < high:
        pivots = pivots_between(low, high)
        num_above = tl.zeros((_NUM_PIVOTS,), tl.int32)
        least_above = tl.zeros((_NUM_PIVOTS,), tl.int32) + high
        most_below = tl.zeros((_NUM_PIVOTS,), tl.int32) + low
        for start in range(0, width, block):
            keys = ordered(scaled_at(scores, start, width, temperature, block))[None, :]
            is_above = keys > pivots[:, None]
            num_above += tl.sum(is_above.to(tl.int32), 1)
            least_above = tl.minimum(least_above, tl.min(tl.where(is_above, keys, high), 1))
            most_below = tl.maximum(most_below, tl.max(tl.where(is_above, low, keys), 1))
        is_higher = num_above >= top_k
        low = tl.maximum(low, tl.max(tl.where(is_higher, least_above, low), 0))
        high = tl.minimum(high, tl.min(tl.where(is_higher, high, most_below), 0))
    return low


@triton.jit
def nucleus(scores, width, others, temperature, top_p, kth, highest, block: tl.constexpr):
    """Of the scores from `kth` on the least that top-p keeps, how many tokens with that score it bans, and a proof.

    `others` is the mass of tokens that are less likely than all of `scores`; the proof is that top-p bans them all.
    """
    weighed = tl.zeros((block,), tl.float64)
    for start in range(0, width, block):
        scaled = scaled_at(scores, start, width, temperature, block)
        weighed += tl.where(ordered(scaled) >= kth, weight_of(scaled, highest), 0.0).to(tl.float64)
    total = tl.sum(weighed, 0) + others
    target = tl.minimum(1.0 - top_p + _FLOAT32_ROUNDING, tl.full((), _BELOW_ONE, tl.float64)) * total

    # The threshold is the least score whose mass together with all below it exceeds the target.
    is_reached = others <= target
    low, high = kth, tl.where(is_reached, ordered(highest), kth)
    below_low = tl.zeros((), tl.float64) + others  # the mass of what lies below `low`
    while low < high:
        pivots = pivots_between(low, high)
        mass = tl.zeros((_NUM_PIVOTS,), tl.float64) + others  # up to the pivot
        least_above = tl.zeros((_NUM_PIVOTS,), tl.int32) + high
        most_below = tl.zeros((_NUM_PIVOTS,), tl.int32) + low
        for start in range(0, width, block):
            scaled = scaled_at(scores, start, width, temperature, block)
            keys = ordered(scaled)[None, :]
            weights = weight_of(scaled, highest).to(tl.float64)[None, :]
            is_above = keys > pivots[:, None]
            mass += tl.sum(tl.where(is_above | (keys < kth), 0.0, weights), 1)
            least_above = tl.minimum(least_above, tl.min(tl.where(is_above, keys, high), 1))
            most_below = tl.maximum(most_below, tl.max(tl.where(is_above, low, keys), 1))
        is_higher = mass <= target
        below_low = tl.maximum(below_low, tl.max(tl.where(is_higher, mass, 0.0), 0))
        low = tl.maximum(low, tl.max(tl.where(is_higher, least_above, low), 0))
        high = tl.minimum(high, tl.min(tl.where(is_higher, high, most_below), 0))
    own = weight_of(number_of(low), highest).to(tl.float64)
    num_banned = tl.floor((target - below_low) / tl.maximum(own, LEAST_WEIGHT)).to(tl.int32)
    return low, num_banned, is_reached


@triton.jit
def index_of_tied(scores, width, temperature, threshold, rank, block: tl.constexpr):
    """The index of the token that has `rank` tokens of the threshold's score before it; or of the last of them."""
    num_before = 0
    found = 0
    for start in range(0, width, block):
        tied = (ordered(scaled_at(scores, start, width, temperature, block)) == threshold).to(tl.int32)
        num_here = tl.sum(tied, 0)
        if (num_here > 0) & (num_before <= rank):
            ranks = num_before + tl.cumsum(tied, 0) - 1
            is_before = (tied != 0) & (ranks <= rank)
            found = tl.max(tl.where(is_before, start + tl.arange(0, block), found), 0)
        num_before += num_here
    return found


@triton.jit
def kept_weights(scores, start, width, temperature, lowest, first_tied, highest, min_p, block: tl.constexpr):
    """Return a block of weights in float64, 0 for tokens that cannot be drawn."""
    scaled = scaled_at(scores, start, width, temperature, block)
    keys = ordered(scaled)
    is_kept = (keys > lowest) | ((keys == lowest) & (start + tl.arange(0, block) >= first_tied))
    weights = weight_of(scaled, highest, tl.maximum(min_p, LEAST_WEIGHT))
    return tl.where(is_kept, weights, 0.0).to(tl.float64)


@triton.jit
def draw(
    scores,
    width,
    masses,
    temperature,
    lowest,
    first_tied,
    highest,
    min_p,
    uniform,
    block: tl.constexpr,
    num_blocks: tl.constexpr,
):
    """Return the first index whose weight, with those of all before it, exceeds `uniform` times the sum of all.

    `masses` [num_blocks] are the sums of blocks; only the block in which that index lies is looked at.
    """
    blocks = tl.arange(0, num_blocks)
    ends = tl.cumsum(masses, 0)
    # A uniform number is 1 - 2^-32 at most; adding in another order may leave the last sum just short of the total.
    target = tl.minimum(uniform * tl.sum(masses, 0), tl.max(ends, 0) * _BELOW_ONE)
    chosen = tl.min(tl.where(ends > target, blocks, num_blocks - 1), 0)
    before = tl.max(tl.where(blocks < chosen, ends, 0.0), 0)
    kept = kept_weights(scores, chosen * block, width, temperature, lowest, first_tied, highest, min_p, block)
    ends = tl.cumsum(kept, 0)
    rest = tl.minimum(tl.maximum(target - before, 0.0), tl.max(ends, 0) * _BELOW_ONE)
    return tl.min(tl.where(ends > rest, chosen * block + tl.arange(0, block), LAST_ID), 0)
