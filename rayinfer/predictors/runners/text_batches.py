"""Batches of tokenized texts: checked, ordered by length, and as tensors without padding."""

from collections.abc import Sequence

import torch

from rayinfer.errors import InvalidParameter, shown
from rayinfer.models.encoders.encoder import TextBatch
from rayinfer.predictions import PredictorDescription
from rayinfer.predictors.runner import RunnerItem


def check_texts(
    batch: Sequence[RunnerItem], description: PredictorDescription, max_input_tokens: int, vocab_size: int
) -> None:
    """Raise InvalidParameter that names the first item that cannot be computed."""
    for index, item in enumerate(batch):
        place = item.name or f"item {index}"
        if item.task not in description.tasks:
            known = ", ".join(description.tasks)
            raise InvalidParameter(f"{place}: task {item.task!r} is not one of this model's: {known}", "task")
        if not item.token_ids:
            raise InvalidParameter(f"{place}: there are no tokens", "input")
        if len(item.token_ids) > max_input_tokens:
            raise InvalidParameter(
                f"{place}: {len(item.token_ids)} tokens are more than the model's {max_input_tokens}", "input"
            )
        if not 0 <= min(item.token_ids) <= max(item.token_ids) < vocab_size:
            wrong = next(token_id for token_id in item.token_ids if not 0 <= token_id < vocab_size)
            raise InvalidParameter(f"{place}: {shown(wrong)} is no token id below {vocab_size}", "input")


def order_by_length(batch: Sequence[RunnerItem]) -> list[int]:
    """Return the items' numbers, those of one length together: they share a call of the attention."""
    return sorted(range(len(batch)), key=lambda index: len(batch[index].token_ids))


def text_batch(items: Sequence[RunnerItem], device: torch.device) -> TextBatch:
    """Make the tensors of items that lie in the order of their lengths."""
    lengths = [len(item.token_ids) for item in items]
    token_ids = torch.tensor([token_id for item in items for token_id in item.token_ids])
    first = torch.tensor([item.num_first_tokens or length for item, length in zip(items, lengths, strict=True)])
    counts = torch.tensor(lengths)
    positions = torch.arange(len(token_ids)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    token_types = (positions >= first.repeat_interleave(counts)).long()
    return TextBatch(token_ids.to(device), token_types.to(device), positions.to(device), lengths)


def split_tokens(numbers: torch.Tensor, lengths: Sequence[int]) -> list[torch.Tensor]:
    """Numbers [num_tokens, width] -> each text's [length, width]."""
    return list(torch.split(numbers, list(lengths)))
