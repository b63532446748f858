"""Bounded window of rows between source and sink: computed in a good order, written in that of the input."""

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rayinfer.jobs.interfaces import Row
from rayinfer.jobs.parameters import Window
from rayinfer.jobs.providers import RowOutput

PREFIX_CHARS = 64  # rows with equal beginnings of this length are computed one after the other
_ROW_BYTES = 256  # of a row beside its values, about


@dataclass(frozen=True, slots=True)
class FinishedRow:
    """Row with its output."""

    row: Row
    output: RowOutput


class RowWindow:
    """Rows that are read and not yet written; both bounds hold for all of them together.

    Rows are read in portions of half a window. Those of a portion are put in order: groups with equal beginnings
    together, the group of the longest row first. Rows that an earlier run has computed end when they are read.
    """

    def __init__(
        self,
        rows: Iterator[Row],
        settings: Window,
        order_text: Callable[[Row], str],
        ended_before: Mapping[int, RowOutput] | None = None,
    ) -> None:
        self._source = rows
        self._next_row = next(rows, None)
        self._settings = settings
        self._order_text = order_text
        self._waiting: deque[Row] = deque()  # read, in the order of computation
        self._unwritten: deque[Row] = deque()  # read, in the order of the input
        self._outputs: dict[int, RowOutput] = {}  # of ended rows, by index
        self._ended_before = dict(ended_before or {})  # of rows that are not read yet
        self._sizes: dict[int, int] = {}
        self._num_bytes = 0

    @property
    def is_empty(self) -> bool:
        """Whether every row is written."""
        return self._next_row is None and not self._unwritten

    @property
    def num_unwritten(self) -> int:
        """Rows that are read and not yet written."""
        return len(self._unwritten)

    @property
    def num_ended(self) -> int:
        """Rows that have ended and are not yet written, those that are not read yet included."""
        return len(self._outputs) + len(self._ended_before)

    def ended(self) -> list[RowOutput]:
        """Return these rows."""
        return [*self._outputs.values(), *self._ended_before.values()]

    def take(self, max_rows: int) -> list[Row]:
        """Return the next rows to compute."""
        taken: list[Row] = []
        while len(taken) < max_rows:
            if not self._waiting and not self._read_portion():
                break
            taken.append(self._waiting.popleft())
        return taken

    def end(self, output: RowOutput) -> None:
        """Keep a row's output until its turn; raises KeyError for a row that is not in the window or has ended."""
        if output.index not in self._sizes or output.index in self._outputs:
            raise KeyError(output.index)
        self._outputs[output.index] = output

    def pop_finished(self) -> list[FinishedRow]:
        """Return, in the input's order, the rows before the first that has not ended."""
        finished = []
        while self._unwritten and self._unwritten[0].index in self._outputs:
            row = self._unwritten.popleft()
            self._num_bytes -= self._sizes.pop(row.index)
            finished.append(FinishedRow(row, self._outputs.pop(row.index)))
        return finished

    def _read_portion(self) -> bool:
        """Read rows as far as the window has room for a portion of them; returns whether any are waiting."""
        room = self._settings.rows - len(self._unwritten)
        if room < min(self._settings.rows, max(1, self._settings.rows // 2)):
            return False
        portion = []
        for _ in range(max(1, self._settings.rows // 2)):
            row = self._next_row
            if row is None or (self._unwritten and self._num_bytes >= self._settings.bytes):
                break
            self._next_row = next(self._source, None)
            self._unwritten.append(row)
            self._sizes[row.index] = size = _ROW_BYTES + value_bytes(row.data)
            self._num_bytes += size
            if (output := self._ended_before.pop(row.index, None)) is not None:
                self._outputs[row.index] = output
            else:
                portion.append(row)
        self._waiting.extend(self._in_order(portion) if self._settings.orders_rows else portion)
        return bool(self._waiting)

    def _in_order(self, rows: Sequence[Row]) -> list[Row]:
        texts = sorted(((self._order_text(row), row.index, row) for row in rows), key=lambda each: each[:2])
        groups = [list(group) for _, group in itertools.groupby(texts, key=lambda each: each[0][:PREFIX_CHARS])]
        groups.sort(key=lambda group: -max(len(text) for text, _, _ in group))
        return [row for group in groups for _, _, row in group]


def value_bytes(value: Any) -> int:
    """Return about how much memory a row's values take."""
    if isinstance(value, str | bytes):
        return 64 + len(value)
    if isinstance(value, Mapping):
        return 64 + sum(64 + len(key) + value_bytes(part) for key, part in value.items())
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], int | float):
            return 64 + 32 * len(value)
        return 64 + sum(map(value_bytes, value))
    return 32
