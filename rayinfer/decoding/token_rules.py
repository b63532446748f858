"""Tokens that a request favors, allows or forbids by their ids."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rayinfer.decoding.bad_sequences import BadSequences
from rayinfer.decoding.device_copy import copy_to_device
from rayinfer.decoding.ragged_rows import RaggedRows
from rayinfer.sampling_params import SamplingParams

_NEVER = float("-inf")


class TokenRules:
    """Logit bias, allowed tokens, and bad tokens and sequences, of the rows that have them.

    Biases are added before all other changes, as in transformers; forbidden tokens stay forbidden.
    """

    def __init__(self, max_num_rows: int, device: torch.device) -> None:
        self._device = device
        self._biases = RaggedRows(max_num_rows, device)  # token ids, biases
        self._allowed = RaggedRows(max_num_rows, device)  # token ids
        self._bad_tokens = RaggedRows(max_num_rows, device)  # token ids
        self._bad_sequences = BadSequences(max_num_rows, device)

    def add_row(
        self, row: int, params: SamplingParams, prompt: npt.NDArray[np.int64], output: npt.NDArray[np.int64]
    ) -> None:
        """Set the rules of a request with these tokens, for a row that has none."""
        if params.biases:
            token_ids, biases = zip(*params.biases, strict=True)
            self._biases.put(row, np.array(token_ids, dtype=np.int64), np.array(biases, dtype=np.float32))
        if params.allowed_ids is not None:
            self._allowed.put(row, np.unique(params.allowed_ids))
        bad_tokens = [sequence[0] for sequence in params.bad_sequences if len(sequence) == 1]
        if bad_tokens:
            self._bad_tokens.put(row, np.unique(bad_tokens))
        bad_sequences = [sequence for sequence in params.bad_sequences if len(sequence) > 1]
        if bad_sequences:
            self._bad_sequences.add_row(row, bad_sequences, prompt, output)

    def remove_row(self, row: int) -> None:
        """Forget the rules of `row`."""
        for each in (self._biases, self._allowed, self._bad_tokens):
            each.drop(row)
        self._bad_sequences.remove_row(row)

    def add_biases_(self, scores: Tensor, rows: npt.NDArray[np.integer]) -> None:
        """Add in place each row's biases to `scores` [len(rows), vocab], float32."""
        biased = self._biases.gather(rows)
        if biased is not None:
            token_ids, biases = biased.columns
            scores[biased.lines, token_ids] += biases  # a row lists no id twice

    def forbid_(self, scores: Tensor, rows: npt.NDArray[np.integer]) -> None:
        """Set to -inf in place what the rows do not allow, and what they forbid."""
        allowed = self._allowed.gather(rows)
        if allowed is not None:
            (token_ids,) = allowed.columns
            kept = scores[allowed.lines, token_ids]
            scores.index_fill_(0, copy_to_device(allowed.listed, self._device), _NEVER)
            scores[allowed.lines, token_ids] = kept
        bad_tokens = self._bad_tokens.gather(rows)
        if bad_tokens is not None:
            scores[bad_tokens.lines, bad_tokens.columns[0]] = _NEVER
        self._bad_sequences.forbid_(scores, rows)

    def record(self, rows: npt.NDArray[np.integer], token_ids: Tensor) -> None:
        """Record the tokens just chosen, int64 [len(rows)], where sequences depend on them."""
        self._bad_sequences.record(rows, token_ids)
