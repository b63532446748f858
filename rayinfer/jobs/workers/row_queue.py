"""Rows that wait for a worker, and which of them are suspected of ending workers."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

from rayinfer.jobs.providers import SeededRow

MAX_SHARED_DEATHS = 2  # workers that may die with a row among others; from then on its batch is computed alone
MAX_DEATHS = (
    6  # workers that may die with one row, the last four with its batch alone: kills from outside rarely strike so
)


class RowQueue:
    """Rows of a job in their order; rows of a dead worker come back and go first."""

    def __init__(self) -> None:
        self._waiting: deque[SeededRow] = deque()
        self._deaths: Counter[int] = Counter()  # of workers, by the index of an unfinished row that they had

    def __len__(self) -> int:
        return len(self._waiting)

    def extend(self, rows: Sequence[SeededRow]) -> None:
        """Add rows at the end."""
        self._waiting.extend(rows)

    def take(self, in_worker: Mapping[int, SeededRow], *, room: int, batch_rows: int, is_idle: bool) -> list[SeededRow]:
        """Take rows for a worker.

        Args:
            in_worker: its unfinished rows, by index.
            room: rows to take at most, unless one batch has more.
            batch_rows: rows of a batch, which has the same rows in every run; it is taken whole or not at all.
            is_idle: no worker has rows, so a batch that is not whole yet is taken as it is.
        """
        if in_worker and self._waiting and self._is_suspected([*in_worker, self._waiting[0].row.index]):
            return []
        taken: list[SeededRow] = []
        while self._waiting and len(taken) < room:
            batch = self._take_batch(batch_rows)
            is_whole = bool(self._waiting) or batch[-1].row.index % batch_rows == batch_rows - 1
            waits_for_rows = not is_whole and not is_idle and not taken
            is_suspected = self._is_suspected(each.row.index for each in batch)
            if waits_for_rows or (taken and is_suspected):
                self._waiting.extendleft(reversed(batch))
                break
            taken += batch
            if is_suspected:
                break
        return taken

    def finish(self, index: int) -> None:
        """Forget the deaths with a row that has ended."""
        self._deaths.pop(index, None)

    def return_rows(self, rows: Mapping[int, SeededRow]) -> list[SeededRow]:
        """Take back the rows of a dead worker; returns those with which `MAX_DEATHS` workers died."""
        self._deaths.update(rows.keys())
        self._waiting = deque(sorted([*rows.values(), *self._waiting], key=lambda each: each.row.index))
        return [row for index, row in rows.items() if self._deaths[index] >= MAX_DEATHS]

    def _take_batch(self, batch_rows: int) -> list[SeededRow]:
        number = self._waiting[0].row.index // batch_rows
        batch = []
        while self._waiting and self._waiting[0].row.index // batch_rows == number:
            batch.append(self._waiting.popleft())
        return batch

    def _is_suspected(self, indices: Iterable[int]) -> bool:
        """Return whether so many workers died with one of these rows that the row may be the cause."""
        return any(self._deaths[index] >= MAX_SHARED_DEATHS for index in indices)
