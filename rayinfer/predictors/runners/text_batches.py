"""Batches of tokenized texts: checked, ordered by length, and as tensors without padding."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
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
    # By numpy: torch's threads take longer to meet than this takes.
    lengths = [len(item.token_ids) for item in items]
    num_tokens, counts = sum(lengths), np.array(lengths)
    token_ids = np.fromiter(chain.from_iterable(item.token_ids for item in items), np.int64, num_tokens)
    first = np.array([item.num_first_tokens or length for item, length in zip(items, lengths, strict=True)])
    positions = np.arange(num_tokens) - np.repeat(counts.cumsum() - counts, counts)
    token_types = (positions >= np.repeat(first, counts)).astype(np.int64)
    ids, types, places = (torch.from_numpy(array).to(device) for array in (token_ids, token_types, positions))
    return TextBatch(ids, types, places, lengths)


def split_tokens(numbers: torch.Tensor, lengths: Sequence[int]) -> list[torch.Tensor]:
    """Numbers [num_tokens, width] -> each text's [length, width]."""
    return list(torch.split(numbers, list(lengths)))
