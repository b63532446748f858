"""Softmax weights of scores, and the index at which their cumulative sum passes a fraction of the total."""

import torch
from torch import Tensor
from torch.nn.functional import pad, threshold

BLOCK_SIZE = 256
_LOWEST_EXPONENT = -87.0
_SMALLEST_WEIGHT = 2.0**-125  # exp(_LOWEST_EXPONENT) lies below it, float32's normal range goes on to 2^-126
# Below 1 by more than float64 can lose in one block's sum, above what any weight in float32 could decide.
_ALMOST_ALL = 1.0 - 2.0**-40


def padded_to_blocks(scores: Tensor) -> Tensor:
    """`scores` [rows, vocab] followed by as many -inf as fill the last block; the same tensor if none are needed."""
    num_missing = -scores.shape[-1] % BLOCK_SIZE
    return pad(scores, (0, num_missing), value=float("-inf")) if num_missing else scores


def to_weights_(scores: Tensor, best: Tensor) -> Tensor:
    """Convert float32 `scores` in place to probabilities over that of the row's `best` [rows, 1].

    What is too small for float32, -inf above all, becomes exactly 0. It is kept away from exp, which takes ten times
    as long over -inf and over results below the normal range.
    """
    weights = scores.sub_(best).clamp_(min=_LOWEST_EXPONENT).exp_()
    return threshold(weights, _SMALLEST_WEIGHT, 0.0, inplace=True)


def row_sums(values: Tensor) -> Tensor:
    """The sum of each row of float32 `values` [rows, whole blocks], float64 [rows] but only of float32's precision.

    Neither the number of rows nor of threads changes it: the sums of fixed blocks are added one after the other.
    """
    return _blocks(values).sum(dim=-1).cumsum(dim=-1, dtype=torch.float64)[:, -1]


def first_exceeding(weights: Tensor, fraction: Tensor) -> Tensor:
    """The first index per row whose cumulated weight exceeds `fraction` [rows] (float64, in [0, 1)) of the row's sum.

    `weights` [rows, whole blocks] are float32 and not negative, and an index of weight 0 is never returned. Sums are
    float64 over fixed blocks, so neither the number of rows nor of threads changes them. A row that holds NaN gets
    some index within the row.
    """
    blocks = _blocks(weights)
    block_ends = blocks.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)  # [rows, blocks]
    target = (fraction * block_ends[:, -1]).unsqueeze(1)
    block = _count_reached(block_ends, target)
    before = block_ends.gather(1, (block - 1).clamp_(min=0)).masked_fill_(block == 0, 0.0)

    rows = torch.arange(len(weights), device=weights.device)
    ends = blocks[rows, block.squeeze(1)].cumsum(dim=-1, dtype=torch.float64)  # [rows, BLOCK_SIZE]
    # Adding in another order may leave the block's own sum just short of what its entry in block_ends promised.
    rest = torch.minimum(target - before, ends[:, -1:] * _ALMOST_ALL)
    return (block * BLOCK_SIZE + _count_reached(ends, rest)).squeeze(1)


def _blocks(values: Tensor) -> Tensor:
    num_rows, width = values.shape
    return values.view(num_rows, width // BLOCK_SIZE, BLOCK_SIZE)


def _count_reached(ends: Tensor, target: Tensor) -> Tensor:
    return (ends <= target).sum(dim=-1, keepdim=True).clamp_(max=ends.shape[-1] - 1)
