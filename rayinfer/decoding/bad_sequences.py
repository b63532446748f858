"""Bad token sequences, and the last tokens of the requests that have any."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rayinfer.decoding.device_copy import copy_to_device
from rayinfer.decoding.ragged_rows import RaggedRows
from rayinfer.sampling_params import MAX_BAD_SEQUENCE_TOKENS

_REACH = MAX_BAD_SEQUENCE_TOKENS - 1  # how far back a sequence looks
_NO_TOKEN = -1  # pads short histories; in a sequence every token matches it


class BadSequences:
    """Bans the last token of a sequence where its other tokens, of which there is at least one, came just before."""

    def __init__(self, max_num_rows: int, device: torch.device) -> None:
        self._device = device
        self._sequences = RaggedRows(max_num_rows, device)  # last tokens [n], and the others [n, _REACH] before them
        self._recent = torch.full((max_num_rows, _REACH), _NO_TOKEN, dtype=torch.int32, device=device)  # newest last

    def add_row(
        self, row: int, sequences: Sequence[Sequence[int]], prompt: npt.NDArray[np.int64], output: npt.NDArray[np.int64]
    ) -> None:
        """Add a request with these tokens."""
        last_ids = np.array([sequence[-1] for sequence in sequences], dtype=np.int64)
        others = np.stack([_last_tokens(np.array(sequence[:-1])) for sequence in sequences])
        self._sequences.put(row, last_ids, others)
        recent = _last_tokens(np.concatenate((prompt[-_REACH:], output[-_REACH:])))
        self._recent[row] = copy_to_device(recent, self._device)

    def remove_row(self, row: int) -> None:
        """Remove the row's request."""
        self._sequences.drop(row)

    def forbid_(self, scores: Tensor, rows: npt.NDArray[np.integer]) -> None:
        """Set to -inf in place what would complete a sequence; `scores` [len(rows), vocab] are float32."""
        gathered = self._sequences.gather(rows)
        if gathered is None:
            return
        last_ids, others = gathered.columns
        recent = self._recent[
            copy_to_device(rows.astype(np.int64), self._device)[gathered.lines]
        ]  # [sequences, _REACH]
        is_next = ((others == recent) | (others == _NO_TOKEN)).all(dim=-1)
        ban = torch.zeros_like(is_next, dtype=scores.dtype).masked_fill_(is_next, float("-inf"))
        # Added, not written: another, incomplete sequence may end in the same token.
        scores.index_put_((gathered.lines, last_ids), ban, accumulate=True)

    def record(self, rows: npt.NDArray[np.integer], token_ids: Tensor) -> None:
        """Record the tokens just chosen, int64 [len(rows)]."""
        listed = self._sequences.lines_with_lists(rows)
        if not listed.size:
            return
        lines = copy_to_device(listed, self._device)
        kept = copy_to_device(rows[listed].astype(np.int64), self._device)
        newest = token_ids[lines].to(torch.int32).unsqueeze(1)
        self._recent[kept] = torch.cat((self._recent[kept, 1:], newest), dim=1)


def _last_tokens(token_ids: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
    """Return the last _REACH of them, padded on the left."""
    last = np.full(_REACH, _NO_TOKEN, dtype=np.int32)
    kept = token_ids[-_REACH:]
    last[_REACH - len(kept) :] = kept
    return last
