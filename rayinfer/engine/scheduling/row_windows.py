"""Window pages of the running requests: allocated for the tokens of a step, freed behind the window."""

import numpy as np
from msgspec import structs

from rayinfer.engine.plan.step_plan import BoolArray, Int64Array, StepPlan
from rayinfer.engine.scheduling.batch_table import BatchTable
from rayinfer.kv_cache.block_manager import BlockManager
from rayinfer.kv_cache.hybrid_blocks import HybridBlockManager
from rayinfer.kv_cache.hybrid_sizes import StepSize


class RowWindows:
    """Pages of each row, for the blocks that its next tokens see or write.

    A row reserves as many pages as it has blocks, at most `StepSize.pages_of_row`; those of tokens in flight are
    reserved for all rows together. Rows are admitted and grow within that, so a step never lacks a page. Pages are
    freed behind the window of computed tokens: what is in flight may be computed again.
    """

    def __init__(self, table: BatchTable, blocks: HybridBlockManager, num_tokens_in_flight: int) -> None:
        self._table = table
        self._blocks = blocks
        self._pages = blocks.pages
        self._block_size = blocks.block_size
        step = StepSize(
            num_rows=table.num_rows,
            num_tokens=num_tokens_in_flight,
            window=blocks.window,
            block_size=blocks.block_size,
        )
        self._pages_of_row = step.pages_of_row
        # Where every block can have its page, none is ever lacking.
        is_scarce = blocks.pages.num_pages < blocks.num_blocks
        self._num_reservable = blocks.pages.num_pages - step.pages_of_step if is_scarce else None
        if self._num_reservable is not None and self._num_reservable < self._pages_of_row:
            raise ValueError(f"{blocks.pages.num_pages} window pages are too few for steps of {num_tokens_in_flight}")
        # By row: its blocks from the first one to before the last one hold a page.
        self._firsts = np.zeros(table.num_rows, np.int64)
        self._ends = np.zeros(table.num_rows, np.int64)

    # Reservation

    def num_missing(self, num_blocks: int, others: Int64Array) -> int:
        """Return how many pages are lacking for one more row of so many blocks beside `others`; 0 or less: none."""
        if self._num_reservable is None:
            return 0
        headroom = self._pages.num_pages // 100 + 1 if len(others) else 0  # as many as for blocks
        return self._reserved_by(others) + min(num_blocks, self._pages_of_row) + headroom - self._num_reservable

    def can_grow(self, rows: Int64Array) -> bool:
        """Return whether each of the rows can have one more block."""
        return self._num_reservable is None or int(self._still_reserves(rows).sum()) <= self._num_unreserved

    @property
    def num_spare(self) -> int:
        """Rows that can grow by a block, whichever they are."""
        return self._pages.num_pages if self._num_reservable is None else max(0, self._num_unreserved)

    @property
    def _num_unreserved(self) -> int:
        assert self._num_reservable is not None
        return self._num_reservable - self._reserved_by(self._table.rows)

    def _reserved_by(self, rows: Int64Array) -> int:
        return int(np.minimum(self._table.num_blocks[rows], self._pages_of_row).sum())

    def _still_reserves(self, rows: Int64Array) -> BoolArray:
        grows: BoolArray = self._table.num_blocks[rows] < self._pages_of_row
        return grows

    # Pages

    def add_row(self, row: int, cached_blocks: list[int]) -> None:
        """Pin the pages that the first token after a row's cached blocks sees."""
        first = max(0, len(cached_blocks) - self._blocks.num_blocks_seen)
        self._pages.pin(cached_blocks[first:])
        self._firsts[row], self._ends[row] = first, len(cached_blocks)

    def remove_row(self, row: int) -> None:
        """Free a row's pages, before its blocks."""
        self._free(row, int(self._firsts[row]), int(self._ends[row]))
        self._firsts[row] = self._ends[row] = 0

    def allocate_for_step(self) -> None:
        """Give pages to the blocks that the step that is being planned writes."""
        table, rows = self._table, self._table.scheduled_rows
        num_written = table.expected_computed[rows] + table.num_scheduled[rows]
        ends = -(-num_written // self._block_size)
        is_short = ends > self._ends[rows]
        for row, end in zip(rows[is_short].tolist(), ends[is_short].tolist(), strict=True):
            self._pages.allocate(table.block_tables[row, self._ends[row] : end].tolist())
            self._ends[row] = end

    def free_behind(self, rows: Int64Array) -> None:
        """Free pages that no token after the rows' computed ones sees."""
        firsts = np.maximum(self._table.num_computed[rows] - self._blocks.window + 1, 0) // self._block_size
        is_behind = firsts > self._firsts[rows]
        for row, first in zip(rows[is_behind].tolist(), firsts[is_behind].tolist(), strict=True):
            self._free(row, int(self._firsts[row]), first)
            self._firsts[row] = first

    def free_ahead(self, rows: Int64Array) -> None:
        """Free pages behind the rows' tokens, known and in flight: of refused drafts, or of an interrupted step."""
        ends = -(-self._table.expected_computed[rows] // self._block_size)
        is_ahead = ends < self._ends[rows]
        for row, end in zip(rows[is_ahead].tolist(), ends[is_ahead].tolist(), strict=True):
            self._free(row, end, int(self._ends[row]))
            self._ends[row] = end

    def add_tables(self, plan: StepPlan) -> StepPlan:
        """Return the plan with the pages of its blocks; 0 for those that have none, and are not read."""
        of_block, size = self._pages.of_block, np.int64(self._block_size)
        tables = np.maximum(of_block[plan.block_tables], 0)
        blocks, offsets = np.divmod(plan.slot_mapping, size)
        slot_mapping = of_block[blocks] * size + offsets
        if self._blocks.all_layers_slide:
            return structs.replace(plan, block_tables=tables, slot_mapping=slot_mapping)
        return structs.replace(plan, window_tables=tables, window_slot_mapping=slot_mapping)

    @property
    def num_used(self) -> int:
        """Pages with readers."""
        return self._pages.num_used

    @property
    def num_pages(self) -> int:
        """Pages of the pool."""
        return self._pages.num_pages

    @property
    def pages_in_use(self) -> list[int]:
        """Pages with readers."""
        rows = self._table.rows.tolist()
        held = [self._table.block_tables[row, self._firsts[row] : self._ends[row]] for row in rows]
        pages: list[int] = np.unique(self._pages.of_block[np.concatenate(held)]).tolist() if held else []
        return pages

    def _free(self, row: int, first: int, end: int) -> None:
        self._blocks.free_pages(self._table.block_tables[row, first:end].tolist())


def row_windows(table: BatchTable, block_manager: BlockManager, num_tokens_in_flight: int) -> RowWindows | None:
    """Make the pages of rows where blocks have some; steps in flight have up to `num_tokens_in_flight` together."""
    if not isinstance(block_manager, HybridBlockManager):
        return None
    return RowWindows(table, block_manager, num_tokens_in_flight)
