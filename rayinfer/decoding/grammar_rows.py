"""Grammars of the rows that have one: the state of each answer, and the masks of the tokens that may follow."""

import logging
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from llguidance import LLExecutor, LLMatcher
from torch import Tensor

from rayinfer.decoding.device_copy import HostCopy, copy_to_device
from rayinfer.errors import InvalidParameter
from rayinfer.grammars.compilation import reason
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
        self._errors: dict[int, str] = {}  # of rows whose grammar allows no token
        self._unread: list[_Sampled] = []
        self._bits = np.zeros((0, self._num_words), np.int32)
        self._executor: LLExecutor | None = None

    def add_row(self, row: int, spec: StructuredOutputsParams, output: npt.NDArray[np.int64]) -> None:
        """Put the grammar of a request with this output into a free row.

        Engines check grammars before they queue a request; where one fails nevertheless, its row forbids every token.
        """
        try:
            matcher = self._compiler.matcher(spec)
        except InvalidParameter as error:
            _logger.error("a grammar that was checked does not compile: %s", error)
            self._matchers[row], self._errors[row] = None, error.message
            return
        if len(output):
            matcher.consume_tokens(output.tolist())
        self._matchers[row] = matcher

    def remove_row(self, row: int) -> None:
        """Forget the grammar of `row`, if it has one."""
        self._matchers.pop(row, None)
        self._errors.pop(row, None)

    def masks(self, rows: npt.NDArray[np.integer]) -> ops.RowMasks:
        """Compute the masks of those of `rows` that have a grammar, valid until the next call."""
        self._consume_sampled()
        lines = self._lines(rows)
        bits = self._filled(rows[lines])
        # On a CPU the masks are read where they were computed.
        on_device = torch.from_numpy(bits) if self._device.type == "cpu" else copy_to_device(bits, self._device)
        return ops.RowMasks(copy_to_device(lines, self._device), on_device)

    def errors_of(self, rows: npt.NDArray[np.integer]) -> dict[int, str] | None:
        """Return why those of `rows` that are invalid by their grammars are so; None where none is."""
        if not self._errors:
            return None
        return {row: self._errors[row] for row in rows.tolist() if row in self._errors}

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
            pairs = [
                (matcher, token_id)
                for matcher, token_id in zip(sampled.matchers, token_ids, strict=True)
                if matcher is not None and not matcher.is_error()  # an invalid row has no token
            ]
            if len(pairs) <= _FEW_ROWS:
                for matcher, token_id in pairs:
                    matcher.consume_token(token_id)
            else:
                self._threads().consume_token_par(pairs)
        self._unread.clear()

    def _threads(self) -> LLExecutor:
        if self._executor is None:
            self._executor = LLExecutor(num_threads=torch.get_num_threads())
        return self._executor

    def _filled(self, rows: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
        matchers = [self._matchers[row] for row in rows.tolist()]
        if len(self._bits) < len(matchers):
            self._bits = np.zeros((len(matchers), self._num_words), np.int32)
        masks = self._bits[: len(matchers)]
        row_bytes = 4 * self._num_words
        pairs = [(matcher, index) for index, matcher in enumerate(matchers) if matcher is not None]
        if len(pairs) < len(matchers):
            masks[[index for index, matcher in enumerate(matchers) if matcher is None]] = 0
        if len(pairs) <= _FEW_ROWS:
            for matcher, index in pairs:
                matcher.unsafe_compute_mask_ptr(masks[index].ctypes.data, row_bytes)
        else:
            self._threads().unsafe_compute_mask_ptr(pairs, masks.ctypes.data, row_bytes, len(matchers))
        for matcher, index in pairs:
            if matcher.is_error():
                error = self._errors[int(rows[index])] = f"the grammar meets a limit: {reason(matcher.get_error())}"
                _logger.warning("a structured output ends early: %.200s", error)
                masks[index] = 0
        return masks
