"""Top-k and top-p truncation, by the rules of transformers' TopKLogitsWarper and TopPLogitsWarper.

Both work in place on float32 scores [rows, whole blocks] that the temperature has scaled already.
"""

import numpy as np
import torch
from torch import Tensor

from rayinfer_kernels.reference.inverse_cdf import first_exceeding, to_weights_

_NEVER = float("-inf")
_FLOAT32_ROUNDING = 2.0**-24  # a mass this close to top_p has reached it, as it has in float32
_BELOW_ONE = 1.0 - 2.0**-40  # keeps the most likely token however small top_p is


def keep_top_k_(scores: Tensor, top_k: Tensor, largest_top_k: int) -> None:
    """Ban what is less likely than the k-th token of its row; tokens equal to the k-th stay."""
    most_likely = scores.topk(largest_top_k, dim=-1).values
    threshold = most_likely.gather(1, top_k.unsqueeze(1) - 1)
    scores.masked_fill_(scores < threshold, _NEVER)


def keep_top_k_top_p_(scores: Tensor, top_k: Tensor, top_p: Tensor) -> None:
    """Ban all but the k most likely tokens, then all but the fewest of those whose mass reaches `top_p` (float64).

    The mass is that of the tokens top-k left. Of equally likely tokens at the border the higher ids stay.
    A `top_k` of the row's whole width and a `top_p` of 1 ban nothing.
    """
    ascending = _sorted_ascending(scores)
    kth = ascending.gather(1, (scores.shape[-1] - top_k).unsqueeze(1))
    weights = to_weights_(ascending.clone(), ascending[:, -1:]).masked_fill_(ascending < kth, 0.0)
    unlikely_fraction = (1.0 - top_p + _FLOAT32_ROUNDING).clamp_(max=_BELOW_ONE).masked_fill_(top_p >= 1.0, 0.0)
    first_kept = first_exceeding(weights, unlikely_fraction).unsqueeze(1)
    threshold = ascending.gather(1, first_kept)
    scores.masked_fill_(scores < threshold, _NEVER)
    _ban_first_tied_(scores, threshold, first_kept - torch.searchsorted(ascending, threshold))


def _ban_first_tied_(scores: Tensor, threshold: Tensor, num_banned: Tensor) -> None:
    if not scores.is_cpu:
        _ban_first_(scores, scores == threshold, num_banned)
        return
    rows = num_banned.squeeze(1).nonzero().squeeze(1)  # where looking costs no wait, most rows are seen to need nothing
    if len(rows) > 0:
        kept = scores.index_select(0, rows)
        _ban_first_(kept, kept == threshold[rows], num_banned[rows])
        scores.index_copy_(0, rows, kept)


def _ban_first_(scores: Tensor, tied: Tensor, count: Tensor) -> None:
    rank = tied.cumsum(dim=-1, dtype=torch.int32)
    scores.masked_fill_((rank <= count).logical_and_(tied), _NEVER)


def _sorted_ascending(scores: Tensor) -> Tensor:
    if scores.is_cpu:  # numpy sorts values without their indices, with vector instructions: over ten times faster
        return torch.from_numpy(np.sort(scores.numpy(), axis=-1))
    return scores.sort(dim=-1).values
