"""Lists of token ids that only a few rows of the batch have."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rayinfer.decoding.device_copy import copy_to_device


@dataclass(frozen=True, slots=True)
class GatheredRows:
    """The lists of some rows of a batch, one after the other."""

    listed: npt.NDArray[np.int64]  # [rows with a list], their lines in the batch
    lines: Tensor  # int64 [entries], the line in the batch that each entry belongs to
    columns: tuple[Tensor, ...]  # [entries, ...] each


class RaggedRows:
    """One list per row, of any length and in parallel columns, kept where the logits are.

    Rows without one cost nothing. The gathered lists are cached for the next step, which mostly has the same rows.
    """

    def __init__(self, max_num_rows: int, device: torch.device) -> None:
        self._device = device
        self._columns: dict[int, tuple[Tensor, ...]] = {}
        self._has_list = np.zeros(max_num_rows, dtype=np.bool_)
        self._gathered_rows: npt.NDArray[np.integer] = np.zeros(0, dtype=np.int64)
        self._gathered: GatheredRows | None = None  # the lists of these rows, as long as none has changed

    def put(self, row: int, *columns: npt.NDArray[np.generic]) -> None:
        """Set the list of `row`."""
        self._columns[row] = tuple(copy_to_device(column, self._device) for column in columns)
        self._has_list[row] = True
        self._gathered = None

    def drop(self, row: int) -> None:
        """Forget the list of `row`, if it has one."""
        if self._columns.pop(row, None) is not None:
            self._has_list[row] = False
            self._gathered = None

    def lines_with_lists(self, rows: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """Find the lines of a batch of rows that have a list."""
        return np.flatnonzero(self._has_list[rows])

    def gather(self, rows: npt.NDArray[np.integer]) -> GatheredRows | None:
        """Return the lists of a batch of rows; None if no row has one."""
        if self._gathered is None or not np.array_equal(rows, self._gathered_rows):
            listed = self.lines_with_lists(rows)
            if not listed.size:
                return None
            self._gathered, self._gathered_rows = self._gather(rows, listed), rows.copy()
        return self._gathered

    def _gather(self, rows: npt.NDArray[np.integer], listed: npt.NDArray[np.int64]) -> GatheredRows:
        lists = [self._columns[row] for row in rows[listed].tolist()]
        lengths = np.array([len(columns[0]) for columns in lists])
        lines = torch.repeat_interleave(
            copy_to_device(listed, self._device),
            copy_to_device(lengths, self._device),
            output_size=int(lengths.sum()),  # given, so that the host need not wait for the device's sum
        )
        return GatheredRows(listed, lines, tuple(torch.cat(column) for column in zip(*lists, strict=True)))
