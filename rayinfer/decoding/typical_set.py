"""Locally typical sampling (Meister et al. 2022), by the rule of transformers' TypicalLogitsWarper."""

import torch
from torch import Tensor

from rayinfer_kernels import ops

_FLOAT32_ROUNDING = 2.0**-24  # a mass this close to typical_p has reached it, as it has in float32
_ROWS_AT_ONCE = 8  # on a CPU, whose caches hold what is made of them
_MAX_SURPRISE = 1000.0  # more surprising than any token whose weight float32 can hold


def keep_typical_(weights: Tensor, typical_p: Tensor) -> None:
    """Set to 0 the weights of all but the fewest most typical tokens whose mass reaches `typical_p` (float64 [rows]).

    A token is the more typical the closer its surprise, -log p, lies to the row's expected surprise, the entropy.
    Equally typical ones stay or go together. `weights` are float32 [rows, whole blocks], `typical_p` lies below 1.
    """
    at_once = _ROWS_AT_ONCE if weights.is_cpu else max(len(weights), 1)
    for few, few_p in zip(torch.split(weights, at_once), torch.split(typical_p, at_once), strict=True):
        _keep_typical_(few, few_p)


def _keep_typical_(weights: Tensor, typical_p: Tensor) -> None:
    probabilities = weights / ops.row_sums(weights).float().unsqueeze(1)
    surprise = probabilities.log().neg_().clamp_(max=_MAX_SURPRISE)
    entropy = ops.row_sums(probabilities.mul_(surprise)).float().unsqueeze(1)
    distance = surprise.sub_(entropy).abs_()

    # The bits of floats that are not negative have their order, so a number made of two is sorted by its high word.
    pairs = weights.new_empty(*weights.shape, 2)  # weight and distance
    pairs[..., 0], pairs[..., 1] = weights, distance
    _sort_(pairs.view(torch.int64).squeeze(-1))
    last_kept = ops.first_exceeding(pairs[..., 0].contiguous(), (typical_p - _FLOAT32_ROUNDING).clamp_(min=0.0))
    farthest = pairs[..., 1].gather(1, last_kept.unsqueeze(1))
    weights.masked_fill_(distance > farthest, 0.0)


def _sort_(keys: Tensor) -> None:
    if keys.is_cpu:  # several times faster than torch's, which carries indices along
        keys.numpy().sort(axis=-1)
    else:
        keys.copy_(keys.sort(dim=-1).values)
