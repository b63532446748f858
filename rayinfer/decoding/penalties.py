"""Repetition, presence and frequency penalties, and the token history that they need."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rayinfer.decoding.device_copy import copy_to_device

_FIRST_CAPACITY = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class PenaltyStrengths:
    """Penalties of some rows: float32 [rows] each."""

    repetition: Tensor
    presence: Tensor
    frequency: Tensor


class PenaltyHistory:
    """Tokens that each penalized request has seen, in slots that are allocated and freed.

    A slot lists the tokens that a penalty may touch, so a step's work grows with the history and not with the
    vocabulary. The list may hold a token twice, or unseen ones as padding: a token's penalties stand in
    the two tables by token id, so every entry of the list leads to the same score.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._listed_ids = torch.zeros(0, _FIRST_CAPACITY, dtype=torch.int64, device=device)
        self._is_in_prompt = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)
        self._output_counts = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self._lengths = np.zeros(0, dtype=np.int64)  # entries listed per slot
        self._free_slots: list[int] = []

    @property
    def num_slots(self) -> int:
        """Slots that memory is held for, taken or free."""
        return len(self._lengths)

    def take(self, prompt_token_ids: npt.NDArray[np.int64], output_token_ids: npt.NDArray[np.int64]) -> int:
        """Allocate a slot for a request with these tokens, and return it."""
        prompt_ids = np.unique(self._within_vocabulary(prompt_token_ids))
        output_ids, counts = np.unique(self._within_vocabulary(output_token_ids), return_counts=True)
        listed_ids = np.union1d(prompt_ids, output_ids)
        self._widen(len(listed_ids))
        if not self._free_slots:
            self._add_slots()
        slot = self._free_slots.pop()
        self._lengths[slot] = len(listed_ids)
        self._listed_ids[slot].zero_()[: len(listed_ids)] = self._on_device(listed_ids)
        self._is_in_prompt[slot].zero_()[self._on_device(prompt_ids)] = True
        self._output_counts[slot].zero_()[self._on_device(output_ids)] = self._on_device(counts.astype(np.int32))
        return slot

    def release(self, slot: int) -> None:
        """Free a slot."""
        self._free_slots.append(slot)

    def reserve(self, slots: npt.NDArray[np.int64]) -> None:
        """Reserve capacity for one more token in each of these slots, so that `record` cannot fail."""
        self._widen(int(self._lengths[slots].max(initial=0)) + 1)

    def penalize_(
        self, scores: Tensor, rows: Tensor, slots: npt.NDArray[np.int64], strengths: PenaltyStrengths
    ) -> None:
        """Penalize in place the rows `rows` of `scores` [n, vocab], whose histories are in `slots`."""
        slot_index = self._on_device(slots)
        slot_column, row_column = slot_index.unsqueeze(1), rows.unsqueeze(1)
        listed_ids = self._listed_ids[slot_index, : int(self._lengths[slots].max(initial=0))]
        counts = self._output_counts[slot_column, listed_ids]
        was_output = counts > 0
        was_seen = was_output | self._is_in_prompt[slot_column, listed_ids]

        listed = scores[row_column, listed_ids]  # [rows, longest history]
        repetition = strengths.repetition.unsqueeze(1)
        repeated = torch.where(listed < 0, listed * repetition, listed / repetition)
        listed = torch.where(was_seen, repeated, listed)
        listed -= strengths.frequency.unsqueeze(1) * counts
        listed -= strengths.presence.unsqueeze(1) * was_output
        scores[row_column, listed_ids] = listed

    def record(self, slots: npt.NDArray[np.int64], token_ids: Tensor, is_valid: Tensor) -> None:
        """Count the tokens just chosen, except invalid ones; needs `reserve` before."""
        slot_index = self._on_device(slots)
        self._listed_ids[slot_index, self._on_device(self._lengths[slots])] = token_ids
        self._output_counts[slot_index, token_ids] += is_valid.to(torch.int32)
        self._lengths[slots] += 1

    def _within_vocabulary(self, token_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        # An input embedding may be larger than the output layer; tokens beyond it are never chosen.
        return token_ids[(token_ids >= 0) & (token_ids < self._vocab_size)]

    def _on_device(self, array: npt.NDArray[np.generic]) -> Tensor:
        return copy_to_device(array, self._listed_ids.device)

    def _add_slots(self) -> None:
        num_slots, num_added = self.num_slots, max(1, self.num_slots)
        listed_ids = _with_more_rows(self._listed_ids, num_added)
        is_in_prompt = _with_more_rows(self._is_in_prompt, num_added)
        self._output_counts = _with_more_rows(self._output_counts, num_added)
        self._listed_ids, self._is_in_prompt = listed_ids, is_in_prompt
        self._lengths = np.concatenate((self._lengths, np.zeros(num_added, dtype=np.int64)))
        self._free_slots.extend(reversed(range(num_slots, num_slots + num_added)))

    def _widen(self, capacity: int) -> None:
        num_slots, width = self._listed_ids.shape
        if capacity > width:
            wider = self._listed_ids.new_zeros(num_slots, max(capacity, 2 * width))
            wider[:, :width] = self._listed_ids
            self._listed_ids = wider


def _with_more_rows(table: Tensor, num_added: int) -> Tensor:
    return torch.cat((table, table.new_zeros(num_added, table.shape[1])))
