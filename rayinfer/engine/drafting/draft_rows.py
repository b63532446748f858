"""Tokens and KV blocks by row of the batch, for a model that drafts."""

from collections import OrderedDict
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from rayinfer.engine.drafting.drafter import DraftRow


class DraftRows:
    """Tokens and blocks by row.

    A row keeps its blocks until another request has it, or another row needs them: then the one goes that drafted
    longest ago, whose tokens are computed again if it drafts again.
    """

    def __init__(self, num_rows: int, max_tokens: int, block_size: int, num_blocks: int) -> None:
        self.block_size = block_size
        max_blocks = -(-max_tokens // block_size)
        self.token_ids = np.zeros((num_rows, max_blocks * block_size), np.int32)
        self.num_tokens = np.zeros(num_rows, np.int64)  # whose keys and values are in the blocks
        self.block_tables = np.zeros((num_rows, max_blocks), np.int32)
        self._num_blocks = np.zeros(num_rows, np.int64)
        self._requests: list[object] = [None] * num_rows
        self._free_blocks = list(range(num_blocks - 1, -1, -1))
        self._used: OrderedDict[int, None] = OrderedDict()  # rows with blocks, the one that drafted longest ago first

    def keep_equal(self, row: DraftRow) -> int:
        """Keep what was computed of the row's known tokens, but for the last one; returns their number."""
        if self._requests[row.row] is not row.request:
            self.free(row.row)
            self._requests[row.row] = row.request
        num_equal = min(int(self.num_tokens[row.row]), len(row.token_ids) - 1)
        differing = np.flatnonzero(self.token_ids[row.row, :num_equal] != row.token_ids[:num_equal])
        self.num_tokens[row.row] = differing[0] if len(differing) else num_equal
        return int(self.num_tokens[row.row])

    def reserve(self, row: int, num_tokens: int, kept: Collection[int]) -> bool:
        """Give the row blocks for so many tokens, from others but those `kept`; returns whether there are enough."""
        num_lacking = -(-num_tokens // self.block_size) - int(self._num_blocks[row])
        while num_lacking > len(self._free_blocks):
            oldest = next((each for each in self._used if each not in kept), None)
            if oldest is None:
                return False
            self.free(oldest)
        for _ in range(num_lacking):
            self.block_tables[row, self._num_blocks[row]] = self._free_blocks.pop()
            self._num_blocks[row] += 1
        self._used[row] = None
        self._used.move_to_end(row)
        return True

    def record(self, row: int, start: int, token_ids: npt.NDArray[np.int32]) -> None:
        """Note that these tokens are computed, from a position on."""
        self.token_ids[row, start : start + len(token_ids)] = token_ids
        self.num_tokens[row] = start + len(token_ids)

    def free(self, row: int) -> None:
        """Forget a row and take its blocks back."""
        self._free_blocks += self.block_tables[row, : self._num_blocks[row]].tolist()
        self._num_blocks[row] = self.num_tokens[row] = 0
        self._requests[row] = None
        self._used.pop(row, None)

    def clear(self) -> None:
        """Forget all rows."""
        for row in list(self._used):
            self.free(row)
