"""Rows of background requests, held out of a step until it is known whether a foreground prompt is computed in it."""

from rayinfer.engine.scheduling.batch_table import BatchTable
from rayinfer.priority_queue import BACKGROUND_PRIORITY


class HeldRows:
    """Tokens of the background rows of the step that is being planned, taken out of it until `release`."""

    def __init__(self, table: BatchTable) -> None:
        self._table = table
        rows = table.rows
        self._rows = rows[table.priorities[rows] >= BACKGROUND_PRIORITY]
        self._generations = table.generations[self._rows]
        self._num_scheduled = table.num_scheduled[self._rows]
        table.num_scheduled[self._rows] = 0

    def release(self) -> None:
        """Put them into the step again, but for rows that have been freed since."""
        is_same = self._table.generations[self._rows] == self._generations
        self._table.num_scheduled[self._rows[is_same]] = self._num_scheduled[is_same]
