"""Runner of exported encoders: graphs of padded texts."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from rayinfer.predictions import PredictorDescription
from rayinfer.predictors.runner import RunnerItem, RunnerResult
from rayinfer.predictors.runners.text_batches import check_texts, order_by_length

MOST_PADDING = 1.1  # computed tokens over real ones, of texts that are padded to one length
MAX_ROWS = 256


class PaddedTextRunner:
    """A graph of input ids, attention mask and perhaps types; texts of similar length are padded to one.

    Its outputs are vectors [num_texts, width], then perhaps numbers of tokens [num_texts, length, width]; of a model
    of tokens the latter alone.
    """

    def __init__(
        self,
        graph: Callable[..., Sequence[torch.Tensor]],
        description: PredictorDescription,
        *,
        max_input_tokens: int,
        vocab_size: int,
        pad_token_id: int,
        takes_types: bool,
        device: torch.device,
    ) -> None:
        self._graph, self._device = graph, device
        self._pad_token_id, self._takes_types = pad_token_id, takes_types
        self.description = description
        self.max_input_tokens = max_input_tokens
        self.vocab_size = vocab_size

    @torch.inference_mode()
    def run(self, batch: Sequence[RunnerItem]) -> list[RunnerResult]:
        """See Runner."""
        check_texts(batch, self.description, self.max_input_tokens, self.vocab_size)
        results: list[RunnerResult] = [np.empty(0, dtype=np.float32)] * len(batch)
        for group in _similar_lengths(batch, order_by_length(batch)):
            items = [batch[index] for index in group]
            outputs = [output.float().cpu().numpy() for output in self._graph(*self.padded(items))]
            for row, index in enumerate(group):
                is_of_tokens = batch[index].task in ("token_embed", "token_classify")
                numbers = outputs[-1 if is_of_tokens else 0][row]
                # A copy: neighbors' numbers are not kept alive by one of them.
                results[index] = (numbers[: len(batch[index].token_ids)] if is_of_tokens else numbers).copy()
        return results

    def padded(self, items: Sequence[RunnerItem]) -> list[torch.Tensor]:
        """Make the graph's inputs [num_texts, length] of these items."""
        length = max(len(item.token_ids) for item in items)
        ids = torch.full((len(items), length), self._pad_token_id)
        mask, types = torch.zeros_like(ids), torch.zeros_like(ids)
        for row, item in enumerate(items):
            ids[row, : len(item.token_ids)] = torch.tensor(item.token_ids)
            mask[row, : len(item.token_ids)] = 1
            types[row, item.num_first_tokens or len(item.token_ids) : len(item.token_ids)] = 1
        inputs = [ids, mask, types] if self._takes_types else [ids, mask]
        return [tensor.to(self._device) for tensor in inputs]

    def close(self) -> None:
        """See Runner."""
        del self._graph


def _similar_lengths(batch: Sequence[RunnerItem], order: Sequence[int]) -> list[list[int]]:
    """Cut items, from the shortest to the longest, where padding would cost more than MOST_PADDING."""
    groups: list[list[int]] = []
    num_tokens = 0
    for index in order:
        length = len(batch[index].token_ids)
        num_tokens += length
        group = groups[-1] if groups else []
        if not group or len(group) == MAX_ROWS or (len(group) + 1) * length > MOST_PADDING * num_tokens:
            groups.append([index])
            num_tokens = length
        else:
            group.append(index)
    return groups
