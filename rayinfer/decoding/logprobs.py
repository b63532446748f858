"""Logprobs of tokens: log probabilities of raw logits, ranks, and the most likely tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rayinfer_kernels import ops

# Logits that a CPU works on at a time: results of many megabytes would be fresh memory from the system in every step.
_GROUP_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class LogprobsTensors:
    """Logprobs of one token per row, and of the k most likely ones there, best first and of equals the lowest id."""

    token_ids: Tensor  # int64 [lines, 1 + k + m]: the token itself, then the most likely, then m listed ones
    logprobs: Tensor  # float32 [lines, 1 + k + m]
    ranks: Tensor  # int32 [lines], of the token itself: 1 is the most likely, and equals rank by id


def gather_logprobs(
    logits: Tensor,
    token_ids: Tensor,
    num_top: int,
    listed_ids: Tensor | None = None,
    *,
    lines: Tensor | None = None,
) -> LogprobsTensors:
    """Compute the logprobs of `token_ids` [lines] by `logits` [all, vocab], and of `listed_ids` [lines, m].

    `lines` are the rows of `logits` that the tokens belong to, by default all. No row depends on the others.
    """
    num_lines, group = len(token_ids), max(1, _GROUP_BYTES // (4 * logits.shape[1]))
    if not logits.is_cpu or num_lines <= group:
        return _gather(logits if lines is None else logits.index_select(0, lines), token_ids, num_top, listed_ids)
    parts = []
    for start in range(0, num_lines, group):
        part = slice(start, start + group)
        chosen = logits[part] if lines is None else logits.index_select(0, lines[part])
        parts.append(_gather(chosen, token_ids[part], num_top, None if listed_ids is None else listed_ids[part]))
    return LogprobsTensors(
        token_ids=torch.cat([part.token_ids for part in parts]),
        logprobs=torch.cat([part.logprobs for part in parts]),
        ranks=torch.cat([part.ranks for part in parts]),
    )


def _gather(logits: Tensor, token_ids: Tensor, num_top: int, listed_ids: Tensor | None) -> LogprobsTensors:
    logits = logits.float()
    chosen = token_ids.unsqueeze(1)
    own = logits.gather(1, chosen)
    columns = [chosen]
    if num_top:
        columns.append(_most_likely(logits, num_top))
    if listed_ids is not None:
        columns.append(listed_ids)
    scored = torch.cat(columns, dim=1) if len(columns) > 1 else chosen
    logprobs = (logits.gather(1, scored).double() - _log_sum_exp(logits)).float()
    return LogprobsTensors(scored, logprobs, _rank(logits, own, chosen))


def _log_sum_exp(logits: Tensor) -> Tensor:
    """[lines, 1], in float64."""
    best = logits.amax(dim=-1, keepdim=True)
    padded = ops.padded_to_blocks(logits)
    weights = ops.to_weights_(padded.clone() if padded is logits else padded, best)
    return best.double() + ops.row_sums(weights).log_().unsqueeze(1)


def _rank(logits: Tensor, own: Tensor, token_ids: Tensor) -> Tensor:
    num_above = (logits > own).sum(dim=-1, dtype=torch.int32)
    if not logits.is_cpu:  # finding the rows that need it would make the host wait
        return num_above + _num_level_before(logits, own, token_ids) + 1
    num_level = (logits >= own).sum(dim=-1, dtype=torch.int32) - num_above
    lines = (num_level > 1).nonzero().squeeze(1)
    if len(lines) > 0:
        num_above[lines] += _num_level_before(logits[lines], own[lines], token_ids[lines])
    return num_above + 1


def _num_level_before(logits: Tensor, own: Tensor, token_ids: Tensor) -> Tensor:
    is_lower_id = torch.arange(logits.shape[-1], device=logits.device) < token_ids
    return (logits == own).logical_and_(is_lower_id).sum(dim=-1, dtype=torch.int32)


def _most_likely(logits: Tensor, num_top: int) -> Tensor:
    """The ids of the `num_top` highest logits, [lines, num_top]; of the whole vocabulary if that is smaller."""
    vocab_size = logits.shape[-1]
    num_top = min(num_top, vocab_size)
    best = logits.topk(min(num_top + 1, vocab_size), dim=-1)
    values, token_ids = best.values[:, :num_top], best.indices[:, :num_top]
    if num_top < vocab_size:  # which of the tokens that tie for the last places come in, topk leaves open
        _resolve_ties_(token_ids, logits, values, best.values[:, num_top] == values[:, -1])
    token_ids, order = token_ids.sort(dim=-1)
    order = values.gather(1, order).sort(dim=-1, descending=True, stable=True).indices
    return token_ids.gather(1, order)


def _resolve_ties_(token_ids: Tensor, logits: Tensor, values: Tensor, is_split: Tensor) -> None:
    """Replace tied tokens by those of lowest id, in the rows where tied tokens were left out."""
    if not logits.is_cpu:  # a look would make the host wait, and resolving again changes nothing
        token_ids.copy_(_with_lowest_tied(token_ids, logits, values))
        return
    lines = is_split.nonzero().squeeze(1)
    if len(lines) > 0:
        token_ids[lines] = _with_lowest_tied(token_ids[lines], logits[lines], values[lines])


def _with_lowest_tied(token_ids: Tensor, logits: Tensor, values: Tensor) -> Tensor:
    last_value = values[:, -1:]
    num_above = (values > last_value).sum(dim=-1, keepdim=True)
    place = torch.arange(values.shape[-1], device=logits.device).expand_as(values)
    num_tied_so_far = (logits == last_value).cumsum(dim=-1, dtype=torch.int32)
    wanted = (place - num_above + 1).clamp_(min=1).to(torch.int32)
    lowest = torch.searchsorted(num_tied_so_far, wanted).clamp_(max=logits.shape[-1] - 1)
    return torch.where(place >= num_above, lowest, token_ids)
