"""The running requests with their rows and blocks: who takes them here gives them back here."""

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from rayinfer.engine.batch_table import BatchTable
from rayinfer.engine.prefixes_under_way import PrefixesUnderWay
from rayinfer.engine.request import Request, RequestStatus
from rayinfer.engine.step_plan import Int64Array
from rayinfer.kv_cache.block_manager import BlockManager


@dataclass(frozen=True, slots=True)
class Reservation:
    """Blocks that a request holds before it has its row; the first of them are hits."""

    blocks: list[int]
    num_cached: int


class RunningBatch:
    """Admits requests to rows and blocks, grows them, stores what they wrote, and lets them go."""

    def __init__(self, table: BatchTable, block_manager: BlockManager, *, enable_prefix_caching: bool) -> None:
        self.table = table
        self._blocks = block_manager
        self._block_size = block_manager.block_size
        self._under_way = PrefixesUnderWay()
        self._caches_prefixes = enable_prefix_caching
        self._priorities: Counter[int] = Counter()  # how many run of each

    def park_behind_twin(self, request: Request) -> bool:
        """Set the request aside if a running one is about to write the next blocks of its prefix."""
        if not self._caches_prefixes:
            return False
        request.digests.extend(request.token_ids, len(request.token_ids))
        reusable = self._reusable_digests(request)
        num_cached = len(self._blocks.find_cached_prefix(reusable, request.token_ids, request.salt).blocks)
        last = num_cached
        while last < len(reusable) and self._under_way.is_under_way(reusable[last]):
            last += 1
        if last == num_cached:
            return False
        self._under_way.park(
            request, reusable[last - 1]
        )  # behind the last of them: it is woken once, not block by block
        return True

    def reserve(self, request: Request) -> Reservation | None:
        """Take blocks for all tokens the request has, cached ones first; None, and nothing taken, if they don't fit."""
        if not self.table.has_free_row:
            return None
        cached: list[int] = []
        if self._caches_prefixes:
            reusable = self._reusable_digests(request)
            cached = self._blocks.find_cached_prefix(reusable, request.token_ids, request.salt).blocks
        self._blocks.pin(cached)  # before anything is evicted
        needed = -(-len(request.token_ids) // self._block_size) - len(cached)
        # Without something to spare the next decode step would send the newcomer away again.
        spare = self._blocks.num_blocks // 100 + 1 if len(self.table) else 0
        if needed + spare > self._blocks.num_free:
            self._blocks.free(cached)
            return None
        return Reservation(cached + self._blocks.allocate(needed), len(cached))

    def enter(self, request: Request, reservation: Reservation) -> int:
        """Give the request its row; returns the number of tokens that need no computing."""
        num_cached_tokens = reservation.num_cached * self._block_size
        request.move_to(RequestStatus.RUNNING)
        request.blocks = reservation.blocks
        self._priorities[request.priority] += 1
        request.row = self.table.take(request, num_cached_tokens, reservation.num_cached)
        if self._caches_prefixes:
            self._under_way.announce(request, request.digests.digests[reservation.num_cached :])
        return num_cached_tokens

    def leave(self, request: Request) -> list[Request]:
        """Take row and blocks back; returns the twins that waited for what the request did not get to write."""
        row = request.row
        assert row is not None, f"{request.request_id} does not run"
        unwritten = request.digests.digests[int(self.table.num_stored_blocks[row]) :]
        self.table.release(row)
        self._blocks.free(request.blocks)
        request.blocks, request.row = [], None
        self._priorities[request.priority] -= 1
        self._priorities += Counter()  # drops what has come to nothing
        return self._under_way.settle(request, unwritten)

    def rows_short_of_a_block(self) -> Int64Array:
        """Rows whose next token has no block to go to."""
        table, rows = self.table, self.table.rows
        return rows[table.num_tokens[rows] > table.num_blocks[rows] * self._block_size]

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be handed out."""
        return self._blocks.num_free

    def grow(self, request: Request) -> None:
        """Give the request one more block."""
        assert request.row is not None, f"{request.request_id} does not run"
        block = self._blocks.allocate(1)[0]
        request.blocks.append(block)
        self.table.add_block(request.row, block)

    def store_written_blocks(self, rows: Int64Array) -> list[Request]:
        """Make the rows' newly full blocks hit-able; returns the twins that waited for them."""
        released: list[Request] = []
        if not self._caches_prefixes:
            return released
        table = self.table
        num_full = table.num_computed[rows] // self._block_size
        for i in np.flatnonzero(num_full > table.num_stored_blocks[rows]):
            released += self._store(table.request_at(rows[i]), int(rows[i]), int(num_full[i]))
        return released

    def _store(self, request: Request, row: int, last: int) -> list[Request]:
        first = int(self.table.num_stored_blocks[row])
        tokens, digests = self.table.token_ids[row], request.digests
        digests.extend(tokens, last * self._block_size)
        for index in range(first, last):
            self._blocks.store(
                request.blocks[index],
                digests.digests[index],
                parent=request.blocks[index - 1] if index else None,
                token_ids=tokens[index * self._block_size : (index + 1) * self._block_size],
                salt=request.salt,
            )
        self.table.num_stored_blocks[row] = last
        return self._under_way.settle(request, digests.digests[first:last])

    def has_lower_priority_than(self, request: Request) -> bool:
        """Whether anybody runs that matters less by priority alone."""
        return request.priority < max(self._priorities, default=request.priority)

    def victim(self) -> Request | None:
        """Who gives way: lowest priority first, then most slack before its deadline, then least work lost."""
        running = [self.table.request_at(row) for row in self.table.rows]
        return max(running, key=self._expendability, default=None)

    def _expendability(self, request: Request) -> tuple[int, float, int]:
        deadline = math.inf if request.deadline is None else request.deadline
        assert request.row is not None
        return (request.priority, deadline, -int(self.table.num_computed[request.row]))

    def _reusable_digests(self, request: Request) -> list[bytes]:
        # The last token is always computed: its logits are needed.
        return request.digests.digests[: (len(request.token_ids) - 1) // self._block_size]
