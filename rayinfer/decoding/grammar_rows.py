"""Grammars of the rows that have one: the state of each answer, and the masks of the tokens that may follow."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from llguidance import LLExecutor, LLMatcher
from torch import Tensor

from rayinfer.decoding.device_copy import HostCopy, copy_to_device
from rayinfer.errors import InvalidParameter
from rayinfer.grammars.compiler import GrammarCompiler
from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer_kernels import ops

_logger = logging.getLogger(__name__)
_FEW_ROWS = 2  # handing so many masks to other threads takes longer than computing them


@dataclass(slots=True)
class _Sampled:
    """Tokens that matchers are yet to consume; on a GPU they are still on their way."""

    matchers: list[LLMatcher | None]
    lines: npt.NDArray[np.int64]
    copy: HostCopy


class GrammarRows:
    """Matchers by row.

    A token is consumed when the next masks are wanted, so that nothing waits for a GPU before the next step's model
    runs on it. A matcher that meets a limit forbids every token: its row becomes invalid, and the others go on.
    """

    def __init__(self, compiler: GrammarCompiler, vocab_size: int, device: torch.device) -> None:
        self._compiler = compiler
        self._device = device
        self._num_words = -(-vocab_size // 32)
        self._matchers: dict[int, LLMatcher | None] = {}  # None: no token is allowed
        self._unread: list[_Sampled] = []
        self._executor: LLExecutor | None = None

    def add_row(self, row: int, spec: StructuredOutputsParams, output: npt.NDArray[np.int64]) -> None:
        """Put the grammar of a request with this output into a free row.

        Engines check grammars before they queue a request; where one fails nevertheless, its row forbids every token.
        """
        try:
            matcher = self._compiler.matcher(spec)
        except InvalidParameter as error:
            _logger.error("a grammar that was checked does not compile: %s", error)
            self._matchers[row] = None
            return
        if len(output):
            matcher.consume_tokens(output.tolist())
        self._matchers[row] = matcher

    def remove_row(self, row: int) -> None:
        """Forget the grammar of `row`, if it has one."""
        self._matchers.pop(row, None)

    def mask_(self, scores: Tensor, rows: npt.NDArray[np.integer]) -> None:
        """Set to -inf in place what the rows' grammars forbid in `scores` [len(rows), vocab], float32."""
        self._consume_sampled()
        lines = self._lines(rows)
        masks = self._masks([self._matchers[int(rows[line])] for line in lines])
        ops.mask_rows_(scores, copy_to_device(lines, self._device), copy_to_device(masks, self._device))

    def record(self, rows: npt.NDArray[np.integer], token_ids: Tensor) -> None:
        """Record the tokens just chosen, int64 [len(rows)]."""
        lines = self._lines(rows)
        matchers = [self._matchers[int(rows[line])] for line in lines]
        self._unread.append(_Sampled(matchers, lines, HostCopy(token_ids)))

    def _lines(self, rows: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        return np.array([line for line, row in enumerate(rows.tolist()) if row in self._matchers], np.int64)

    def _consume_sampled(self) -> None:
        for sampled in self._unread:
            token_ids = sampled.copy.array()[sampled.lines].tolist()
            for matcher, token_id in zip(sampled.matchers, token_ids, strict=True):
                if matcher is not None and not matcher.is_error():  # an invalid row has no token
                    matcher.consume_token(token_id)
        self._unread.clear()

    def _masks(self, matchers: Sequence[LLMatcher | None]) -> npt.NDArray[np.int32]:
        masks = np.zeros((len(matchers), self._num_words), np.int32)
        row_bytes = 4 * self._num_words
        pairs = [(matcher, index) for index, matcher in enumerate(matchers) if matcher is not None]
        if len(pairs) <= _FEW_ROWS:
            for matcher, index in pairs:
                matcher.unsafe_compute_mask_ptr(masks[index].ctypes.data, row_bytes)
        else:
            if self._executor is None:
                self._executor = LLExecutor(num_threads=torch.get_num_threads())
            self._executor.unsafe_compute_mask_ptr(pairs, masks.ctypes.data, row_bytes, len(matchers))
        for matcher, index in pairs:
            if matcher.is_error():
                _logger.error("a structured output ends early: %.200s", matcher.get_error())
                masks[index] = 0
        return masks
