"""Rows and blocks of the running requests, both allocated and freed here."""

from collections import Counter
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from rayinfer.engine.plan.step_plan import BoolArray, Int32Array, Int64Array, NewRequestData, StepPlan
from rayinfer.engine.scheduling.batch_table import BatchTable
from rayinfer.engine.scheduling.in_flight_prefixes import InFlightPrefixes
from rayinfer.engine.scheduling.kv_offload import KVOffload
from rayinfer.engine.scheduling.request import Request, RequestStatus
from rayinfer.engine.scheduling.row_windows import RowWindows
from rayinfer.engine.scheduling.slot_allocator import SlotAllocator
from rayinfer.engine.scheduling.stored_prefixes import FinishedLoads, StoredPrefixes
from rayinfer.kv_cache.block_hash import token_bytes
from rayinfer.kv_cache.block_manager import BlockManager, CachedPrefix


@dataclass(frozen=True, slots=True)
class Reservation:
    """Blocks allocated to a request that has no row yet; the first ones are prefix-cache hits."""

    blocks: list[int]
    num_cached: int


class RunningBatch:
    """Gives requests rows and blocks, grows them, stores their full blocks in the prefix cache, and frees both."""

    def __init__(
        self,
        table: BatchTable,
        block_manager: BlockManager,
        *,
        enable_prefix_caching: bool,
        offload: KVOffload | None = None,
        stored_prefixes: StoredPrefixes | None = None,
        adapters: SlotAllocator | None = None,
        windows: RowWindows | None = None,
    ) -> None:
        self.table = table
        self.num_rows_freed = 0  # grows whenever a row and its blocks are freed
        self._blocks = block_manager
        self._block_size = block_manager.block_size
        self.in_flight_prefixes = InFlightPrefixes()
        self._caches_prefixes = enable_prefix_caching
        self._offload = offload
        self.windows = windows  # None where all layers are of one kind
        self._stored_prefixes = stored_prefixes
        self.adapters = SlotAllocator(0) if adapters is None else adapters
        self._num_offered_blocks = np.zeros(table.num_rows, np.int64)  # by row: to the machine's store
        self.priorities: Counter[int] = Counter()  # running requests of each
        # By stored block: a request has sampled from finite logits with it, so it is finite too.
        self._is_finite = np.zeros(block_manager.num_blocks, np.bool_)

    # Admission

    def find_cached_prefix(self, request: Request) -> CachedPrefix:
        """Find the blocks that the request need not compute."""
        if not self._caches_prefixes:
            return CachedPrefix(blocks=[], num_tokens=0)
        request.block_hashes.extend(request.token_ids, len(request.token_ids))
        return self._blocks.find_cached_prefix(self._reusable_hashes(request), request.token_ids, request.salt)

    def wait_for_prefix(self, request: Request, prefix: CachedPrefix) -> bool:
        """Let the request wait for the blocks after its cached prefix.

        A running one is about to write them, or the machine's block store has them.
        """
        if not self._caches_prefixes or (self._offload is not None and self._offload.holds(request)):
            return False
        reusable = self._reusable_hashes(request)
        last = len(prefix.blocks)
        while last < len(reusable) and self.in_flight_prefixes.is_pending(reusable[last], request):
            last += 1
        if last == len(prefix.blocks):
            stored, headroom = self._stored_prefixes, self._headroom(len(self.table))
            return stored is not None and stored.wait_for_load(request, prefix, reusable, headroom)
        # For the last of them: it is queued again once, not block by block.
        self.in_flight_prefixes.add_waiter(request, reusable[last - 1])
        return True

    def reserve(self, request: Request, prefix: CachedPrefix) -> Reservation | None:
        """Allocate blocks for all tokens of the request, cached ones first; None if they do not fit."""
        if not self.table.has_free_row:
            return None
        cached, num_blocks = prefix.blocks, request.num_blocks_needed(self._block_size)
        if self._num_missing_pages(num_blocks, self.table.rows) > 0:
            return None
        self._blocks.pin(cached)  # before anything is evicted
        needed = num_blocks - len(cached)
        if needed + self._headroom(len(self.table)) > self._blocks.num_free:
            self._blocks.free(cached)
            return None
        return Reservation(cached + self._blocks.allocate(needed), len(cached))

    def add(self, request: Request, reservation: Reservation) -> int:
        """Give the request its row; returns the number of its tokens that are computed already."""
        num_computed = reservation.num_cached * self._block_size
        request.move_to(RequestStatus.RUNNING)
        if request.num_cached_tokens is None:
            request.num_cached_tokens = min(num_computed, request.prompt_len)
        if self._offload is not None:
            num_computed = self._offload.swap_in(request, reservation.blocks, reservation.num_cached)
        self.priorities[request.priority] += 1
        request.adapter_slot = self.adapters.allocate(request.adapter)
        request.note_hit_blocks(reservation.num_cached)
        request.is_load_done = False
        request.blocks = reservation.blocks
        request.row = self.table.add_row(request, num_computed=num_computed, num_stored_blocks=reservation.num_cached)
        if self.windows is not None:
            self.windows.add_row(request.row, request.blocks[: reservation.num_cached])
        self._num_offered_blocks[request.row] = 0  # hits too: that they are used keeps them in the store
        if self._caches_prefixes:
            self.in_flight_prefixes.register(request, request.block_hashes.hashes[reservation.num_cached :])
        return num_computed

    # Running

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be allocated, whichever rows get them."""
        num_free = self._blocks.num_free
        return num_free if self.windows is None else min(num_free, self.windows.num_spare)

    @property
    def num_headroom_blocks(self) -> int:
        """Blocks that are left free beside running requests when another is admitted."""
        return self._headroom(len(self.table))

    def rows_short_of_a_block(self) -> Int64Array:
        """Return the rows whose next token has no block."""
        table, rows = self.table, self.table.rows
        short = rows[table.expected_tokens[rows] > table.num_blocks[rows] * self._block_size]
        return short[table.has_next_token(short)] if len(short) else short

    def can_grow(self, rows: Int64Array) -> bool:
        """Return whether each of the rows can have one more block."""
        return len(rows) <= self._blocks.num_free and (self.windows is None or self.windows.can_grow(rows))

    def grow(self, rows: Int64Array) -> None:
        """Give each of the rows one more block."""
        self.table.add_blocks(rows, self._blocks.allocate(len(rows)))

    def assemble(self, *, step: int, new_requests: tuple[NewRequestData, ...]) -> StepPlan:
        """Gather the scheduled tokens of all rows into one plan, with window pages for what it writes."""
        if self.windows is None:
            return self._assemble(step, new_requests)
        self.windows.allocate_for_step()
        return self.windows.add_tables(self._assemble(step, new_requests))

    def _assemble(self, step: int, new_requests: tuple[NewRequestData, ...]) -> StepPlan:
        emptied_slots = self.adapters.take_emptied_slots()
        return self.table.assemble(step=step, new_requests=new_requests, emptied_adapter_slots=emptied_slots)

    def store_written_blocks(self, rows: Int64Array, has_sampled: BoolArray) -> list[Request]:
        """Store the rows' newly full blocks in the prefix cache; returns the requests that waited for them.

        `has_sampled` marks the rows that sampled in this step: what the others wrote may not be finite.
        """
        if not self._caches_prefixes:
            return []
        table = self.table
        if table.uncacheable_rows:
            may_store = ~np.isin(rows, list(table.uncacheable_rows))
            rows, has_sampled = rows[may_store], has_sampled[may_store]
        if table.unverified_rows:
            self._mark_finite(table.unverified_rows.intersection(rows[has_sampled].tolist()))
        num_unstored_tokens = table.num_computed[rows] - table.num_stored_blocks[rows] * self._block_size
        rows = rows[num_unstored_tokens >= self._block_size]
        if not len(rows):
            return []
        num_full = table.num_computed[rows] // self._block_size
        num_new = num_full - table.num_stored_blocks[rows]
        table.num_stored_blocks[rows] = num_full
        # From here on one entry for each new block: its row, and which block of that row it is.
        ends = num_new.cumsum()
        indices = np.arange(ends[-1]) - (ends - num_full).repeat(num_new)
        rows = rows.repeat(num_new)
        writers = table.requests_at(rows)
        token_ids = table.tokens_in_blocks[rows, indices]
        block_hashes = _hashes_of(writers, indices.tolist(), token_ids)
        parents = table.block_tables[rows, indices - 1].tolist()
        blocks = table.block_tables[rows, indices]
        self._is_finite[blocks] = ~np.isin(rows, list(table.unverified_rows)) if table.unverified_rows else True
        self._blocks.store_all(
            blocks.tolist(),
            block_hashes,
            parents=[parent if index else None for parent, index in zip(parents, indices.tolist(), strict=True)],
            token_ids=token_ids,
            salts=[writer.salt for writer in writers],
        )
        return self.in_flight_prefixes.resolve(writers, block_hashes)

    def forget_written_blocks(self, rows: Int64Array) -> None:
        """Remove from the prefix cache what these rows' requests have written: it is not finite.

        Blocks that they hit are removed too, unless a request has sampled from them: their writer may have been
        aborted. Requests that share such blocks continue, but store nothing more and are not swapped out.
        """
        if not self._caches_prefixes:
            return
        table = self.table
        block_hashes = {block_hash for row in rows.tolist() for block_hash in self._suspect_hashes(row)}
        blocks: list[int] = []
        for row, sharer in zip(table.rows.tolist(), table.requests_at(table.rows), strict=True):
            shared = [i for i, block_hash in enumerate(sharer.block_hashes.hashes) if block_hash in block_hashes]
            if shared:
                blocks += table.block_tables[row, shared[0] : table.num_blocks[row]].tolist()
                table.uncacheable_rows.add(row)
        self._blocks.forget(block_hashes, blocks)
        if self._offload is not None:
            self._offload.forget(block_hashes)

    def free_windows(self, plan: StepPlan) -> None:
        """Free window pages that the requests of a computed step need no more."""
        if self.windows is not None:
            self.windows.free_ahead(plan.rows)  # also of drafts that a failed step had
            self.windows.free_behind(plan.rows)

    def free_interrupted(self, rows: list[int]) -> None:
        """Free window pages that an interrupted step was to write for these rows."""
        if self.windows is not None:
            self.windows.free_ahead(np.unique(rows))

    # The machine's block store

    def offer_written_blocks(self, rows: Int64Array) -> None:
        """Offer the full blocks of rows that have just sampled from finite logits: so all they have read is finite."""
        if self._stored_prefixes is None:
            return
        table = self.table
        num_full = table.num_stored_blocks[rows]
        is_new = num_full > self._num_offered_blocks[rows]
        for row, end in zip(rows[is_new].tolist(), num_full[is_new].tolist(), strict=True):
            if row not in table.uncacheable_rows:
                token_ids = table.token_ids[row, : end * self._block_size].copy()
                blocks = table.block_tables[row, :end].tolist()
                first = int(self._num_offered_blocks[row])
                self._stored_prefixes.offer(table.request_at(row), token_ids, blocks, first)
                self._num_offered_blocks[row] = end

    def has_transfers(self) -> bool:
        """Return whether blocks are being copied to or from the store."""
        return self._stored_prefixes is not None and self._stored_prefixes.has_transfers()

    def finish_transfers(self, *, drain: bool = False) -> list[Request]:
        """Free blocks that were copied to or from the store; returns the requests that waited for loaded ones.

        With `drain`, wait for all copies.
        """
        stored = self._stored_prefixes
        if stored is None or not self.has_transfers():
            return []
        finished: FinishedLoads = stored.drain() if drain else stored.finish()
        self._is_finite[finished.blocks] = True
        if not self.has_transfers():
            self.num_rows_freed += 1  # a request may fit now
        return finished.waiters

    # Leaving

    def swap_out(self, request: Request) -> None:
        """Copy what a running request has computed to the second pool, if there is one with enough free blocks."""
        if self._offload is None:
            return
        table, row = self.table, request.row
        if row in table.uncacheable_rows:
            return
        self._offload.swap_out(
            request,
            table.token_ids[row, : table.num_computed[row]],
            table.block_tables[row, : table.num_blocks[row]].tolist(),
            num_stored_blocks=int(table.num_stored_blocks[row]),
        )

    def drop_swapped(self, request: Request) -> None:
        """Free a finished request's blocks in the second pool."""
        if self._offload is not None:
            self._offload.drop(request)

    def free(self, request: Request) -> list[Request]:
        """Free row and blocks; returns the requests that waited for blocks that this one has not written."""
        row = request.row
        assert row is not None, f"{request.request_id} does not run"
        unwritten = request.block_hashes.hashes[int(self.table.num_stored_blocks[row]) :]
        if self.windows is not None:
            self.windows.remove_row(row)
        self.table.remove_row(row)
        self._blocks.free(request.blocks)
        request.blocks, request.row = [], None
        self.adapters.free(request.adapter)
        self.num_rows_freed += 1
        self.priorities[request.priority] -= 1
        if not self.priorities[request.priority]:
            del self.priorities[request.priority]
        return self.in_flight_prefixes.resolve(repeat(request), unwritten)

    def has_lower_priority_than(self, request: Request) -> bool:
        """Whether a request of lower priority runs."""
        return request.priority < max(self.priorities, default=request.priority)

    def victim(self) -> Request:
        """Return the request to preempt when blocks are short: never the first in queue order, if others run.

        So the first request always runs to its end, and in time every request becomes the first.
        """
        table, rows = self.table, self.table.rows
        first = np.lexsort((table.orders[rows], table.deadlines[rows], table.keys[rows]))[0]
        return self._victim_among(np.delete(rows, first) if len(rows) > 1 else rows)

    def victim_for(self, request: Request, prefix: CachedPrefix) -> Request | None:
        """Return a request of lower priority to preempt for a waiting one; None if preempting all is not enough."""
        if not self.has_lower_priority_than(request):
            return None
        table, rows = self.table, self.table.rows
        is_lower = self._has_lower_priority(rows, request)
        below, others = rows[is_lower], rows[~is_lower]
        wanted = request.num_blocks_needed(self._block_size) + self._headroom(len(others))
        most = self._blocks.num_free + int(table.num_blocks[below].sum())  # if they share none with others
        if not len(below) or wanted - len(prefix.blocks) > most:
            return None
        held = table.blocks_of(others)
        num_hits = int(np.isin(prefix.blocks, held).sum())
        if wanted - num_hits > self._blocks.num_blocks - len(held):
            return None
        if self._num_missing_pages(request.num_blocks_needed(self._block_size), others) > 0:
            return None
        return self._victim_among(below)

    def _victim_among(self, rows: Int64Array) -> Request:
        """Return the one of lowest priority, then with the latest deadline, then with the fewest computed tokens.

        Of equals, the one that was admitted last.
        """
        table = self.table
        for column in (-table.priorities, -table.deadlines, table.num_computed):
            values = column[rows]
            rows = rows[values == values.min()]
        return table.request_at(rows[-1])

    def _has_lower_priority(self, rows: Int64Array, request: Request) -> BoolArray:
        # Equal priorities never preempt each other, nor does a later arrival an earlier one that ageing has put first.
        assert request.queue_entry is not None
        less: BoolArray = (self.table.priorities[rows] > request.priority) & (
            self.table.keys[rows] > request.queue_entry.key
        )
        return less

    def _num_missing_pages(self, num_blocks: int, others: Int64Array) -> int:
        """Return how many window pages one more request of so many blocks lacks beside the rows `others`."""
        return 0 if self.windows is None else self.windows.num_missing(num_blocks, others)

    def _headroom(self, num_running: int) -> int:
        # Without headroom the next decode step would preempt the request just admitted.
        return self._blocks.num_blocks // 100 + 1 if num_running else 0

    def _mark_finite(self, rows: set[int]) -> None:
        """Mark the rows' stored blocks as finite, and those that they are about to store."""
        table = self.table
        for row in rows:
            self._is_finite[table.block_tables[row, : table.num_stored_blocks[row]]] = True
        table.unverified_rows -= rows

    def _suspect_hashes(self, row: int) -> list[bytes]:
        """Return the hashes of blocks that may have made the row's logits non-finite."""
        request = self.table.request_at(row)
        is_finite = self._is_finite[self.table.block_tables[row, : request.num_hit_blocks or 0]]
        # Up to the first that is not: later blocks may belong to a request that computed its own copy of that one.
        num_finite = int(np.logical_and.accumulate(is_finite).sum())
        return request.block_hashes.hashes[num_finite:]

    def _reusable_hashes(self, request: Request) -> list[bytes]:
        return request.block_hashes.hashes[: request.num_reusable_tokens // self._block_size]


def _hashes_of(writers: list[Request], indices: list[int], token_ids: Int32Array) -> list[bytes]:
    """Return the hashes of blocks of these tokens, [num_blocks, block_size]: block `index` of each writer."""
    written = token_bytes(token_ids)
    width = len(written) // len(writers)
    block_hashes = []
    for writer, index, start in zip(writers, indices, range(0, len(written), width), strict=True):
        known = writer.block_hashes.hashes
        if index == len(known):  # an output block: a prompt's are known since it was queued
            writer.block_hashes.append(written[start : start + width])
        block_hashes.append(known[index])
    return block_hashes
