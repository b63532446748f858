"""Scores prompt tokens for requests that ask for prompt logprobs."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from rayinfer.decoding.device_copy import copy_to_device
from rayinfer.decoding.logprobs import gather_logprobs
from rayinfer.engine.plan.step_plan import Int32Array, Int64Array, NewRequestData, StepPlan
from rayinfer.engine.worker.step_results import PendingLogprobs

SLICE_BYTES = 16 * 2**20  # of logits in float32; scoring needs about three times as much for a moment


@dataclass(frozen=True, slots=True)
class _Prompt:
    token_ids: Int32Array
    num_top: int


@dataclass(frozen=True, slots=True)
class _ScoredPart:
    """Tokens of one prompt that a step can score, each by the hidden state of the token before it."""

    row: int
    num_top: int
    first_line: int  # of the step's hidden states
    first_position: int
    token_ids: Int32Array


class PromptScorer:
    """Prompts whose logprobs are wanted, by row; a step without any costs nothing."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._slice_lines = max(1, SLICE_BYTES // (4 * vocab_size))
        self._prompts: dict[int, _Prompt] = {}

    def scores(self, plan: StepPlan) -> bool:
        """Return whether the step may have something to score."""
        return bool(self._prompts) and any(row in self._prompts for row in plan.rows.tolist())

    def add_row(self, new_request: NewRequestData) -> None:
        """Record the request that is added to a row."""
        self._prompts.pop(new_request.row, None)
        num_top = new_request.params.prompt_logprobs
        if num_top is not None:
            num_top = self._vocab_size if num_top < 0 else num_top
            self._prompts[new_request.row] = _Prompt(new_request.prompt_token_ids, num_top)

    def score(
        self, plan: StepPlan, hidden: torch.Tensor, logits_of: Callable[[torch.Tensor], torch.Tensor]
    ) -> PendingLogprobs | None:
        """Score what the step has computed of these prompts; `hidden` [num_tokens, hidden_size] are its last states.

        A chunk's last token scores the first one of the next chunk. Logits are computed for a slice of states at
        a time, so that memory stays bounded for prompts of any length.
        """
        parts = self._parts(plan) if self._prompts else []
        if not parts:
            return None
        token_ids = np.concatenate([part.token_ids for part in parts]).astype(np.int64)
        lines = _ranges(parts, lambda part: part.first_line)
        num_top = max(part.num_top for part in parts)
        scores = []
        for start in range(0, len(lines), self._slice_lines):
            chosen = slice(start, start + self._slice_lines)
            logits = logits_of(hidden[copy_to_device(lines[chosen], hidden.device)])
            scores.append(gather_logprobs(logits, copy_to_device(token_ids[chosen], hidden.device), num_top))
        rows = np.repeat([part.row for part in parts], [len(part.token_ids) for part in parts])
        return PendingLogprobs(rows, _ranges(parts, lambda part: part.first_position), scores)

    def _parts(self, plan: StepPlan) -> list[_ScoredPart]:
        parts = []
        for index in np.flatnonzero(np.isin(plan.rows, list(self._prompts))).tolist():
            row, start, end = int(plan.rows[index]), int(plan.cu_seqlens_q[index]), int(plan.cu_seqlens_q[index + 1])
            prompt, first = self._prompts[row], int(plan.positions[start]) + 1
            token_ids = prompt.token_ids[first : first + end - start]
            if len(token_ids):
                parts.append(_ScoredPart(row, prompt.num_top, start, first, token_ids))
            else:  # all were scored, in a step that did not fail
                del self._prompts[row]
        return parts


def _ranges(parts: list[_ScoredPart], first: Callable[[_ScoredPart], int]) -> Int64Array:
    return np.concatenate([np.arange(first(part), first(part) + len(part.token_ids)) for part in parts])
