"""One token for each row, by temperature, top-k, top-p and min-p as transformers' warpers have them, and one draw."""

import torch

from rayinfer_kernels.implementation import RowMasks, SampledRows
from rayinfer_kernels.reference.elementwise import argmax, mask_rows_
from rayinfer_kernels.reference.inverse_cdf import first_exceeding, padded_to_blocks, to_weights_
from rayinfer_kernels.reference.truncation import keep_top_k_, keep_top_k_top_p_

_LARGEST_SMALL_TOP_K = 128  # up to here finding the k best is cheaper than sorting the row


def sample_rows(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniform: torch.Tensor,
    is_greedy: torch.Tensor,
    masks: RowMasks | None = None,
) -> SampledRows:
    """See `ops.sample_rows`."""
    if masks is not None:
        logits = logits.to(torch.float32, copy=True)
        mask_rows_(logits, *masks)
    best = argmax(logits)
    is_invalid = (best.values - best.values).ne(0.0)  # what is not finite; isfinite would be four operations
    token_ids = best.indices
    drawn = is_greedy.logical_not().nonzero().squeeze(1)
    if len(drawn):
        settings = (each[drawn] for each in (temperature, top_k, top_p, min_p))
        weights = kept_weights(logits.index_select(0, drawn), best.values[drawn], *settings)
        token_ids[drawn] = first_exceeding(weights, uniform[drawn].double())
    return SampledRows(token_ids.masked_fill_(is_invalid, 0), is_invalid)


def kept_weights(
    scores: torch.Tensor,
    best: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> torch.Tensor:
    """Weights of the tokens that may be drawn, of the others 0: scores [rows, vocab] -> float32 [rows, whole blocks].

    A weight is a probability over that of the row's best, whose score is `best` [rows]. The scores may be lost.
    """
    vocab_size = scores.shape[1]
    scaled = padded_to_blocks(scores.float()).div_(temperature.float().unsqueeze(1))
    _truncate_(scaled, top_k.long(), top_p.double(), vocab_size)
    weights = to_weights_(scaled, (best.float() / temperature.float()).unsqueeze(1))
    return weights.masked_fill_(weights < min_p.float().unsqueeze(1), 0.0)


def _truncate_(scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, vocab_size: int) -> None:
    has_top_p, has_top_k = top_p < 1.0, top_k < vocab_size
    is_sorted = has_top_p | (has_top_k & (top_k > _LARGEST_SMALL_TOP_K))
    few = (has_top_k & ~is_sorted).nonzero().squeeze(1)
    if len(few):
        kept = scaled.index_select(0, few)
        keep_top_k_(kept, top_k[few], int(top_k[few].max()))
        scaled.index_copy_(0, few, kept)
    many = is_sorted.nonzero().squeeze(1)
    if len(many):
        kept = scaled.index_select(0, many)
        keep_top_k_top_p_(kept, top_k[many], top_p[many])
        scaled.index_copy_(0, many, kept)
