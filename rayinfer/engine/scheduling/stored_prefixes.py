"""Prefixes in the machine's KV block store: loads for waiting requests, and offers of what was computed here."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile

from rayinfer.engine.plan.step_plan import Int32Array
from rayinfer.engine.scheduling.request import Request, RequestStatus
from rayinfer.errors import RayinferError
from rayinfer.kv_cache.block_manager import BlockManager, CachedPrefix
from rayinfer.kv_store.transfers import BlockTransfers, FinishedTransfer, Transfer
from rayinfer.outputs import KVStoreStats
from rayinfer.protocols import SharedStore

_logger = logging.getLogger(__name__)

_LONGEST_LOAD_S = 10.0  # after that, requests compute what they have waited for
_PINNED_SHARE = 4  # one of so many blocks of the pool may be kept from being reused while it is offered


@dataclass(kw_only=True, slots=True)
class _Load:
    prefix: Sequence[int]  # blocks before the loaded ones, pinned meanwhile
    started_at: float
    waiters: list[Request] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class FinishedLoads:
    """Blocks that were loaded since the last time, and the requests that waited for them."""

    blocks: list[int] = field(default_factory=list)  # stored in the prefix cache now
    waiters: list[Request] = field(default_factory=list)  # to be queued again


class StoredPrefixes:
    """Loads blocks into the prefix cache for requests that wait, and offers full blocks to the store.

    Blocks that are being copied have a reader of their own, in the pool as for requests. A loaded block becomes a
    cached one without readers, which the request hits when it is admitted. A request waits for one load of its own
    each time that it is admitted, so that one whose blocks are evicted again computes them.
    """

    def __init__(
        self,
        blocks: BlockManager,
        open_transfers: Callable[[], BlockTransfers],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._blocks = blocks
        self._open_transfers = open_transfers
        self._transfers: BlockTransfers | None = open_transfers()
        self._clock = clock
        self._has_failed = False  # to open the store again
        self._loads: dict[Transfer, _Load] = {}
        self._loading: dict[bytes, _Load] = {}  # by the hash of each of its blocks
        self._num_offered = 0  # blocks that are being copied to the store
        self._stats = KVStoreStats()  # of hits, of drops in this file, and of earlier transfers

    @property
    def shared_store(self) -> SharedStore | None:
        """The store as routers know it; None while it is closed."""
        transfers = self._transfers
        return None if transfers is None else SharedStore(transfers.store_name, transfers.most_blocks)

    # Loads

    def has_transfers(self) -> bool:
        """Return whether blocks are being copied."""
        return bool(self._loads or self._num_offered)

    def wait_for_load(
        self, request: Request, prefix: CachedPrefix, block_hashes: Sequence[bytes], num_blocks_headroom: int
    ) -> bool:
        """Let a request wait while blocks after its cached prefix are loaded, if the store has any.

        `block_hashes` are those of all its blocks that may be hits. Nothing is loaded for one that does not fit yet.
        """
        first = len(prefix.blocks)
        if first >= len(block_hashes):
            return False
        load = self._loading.get(block_hashes[first])
        if load is None and not request.is_load_done:
            load = self._start_load(request, prefix, block_hashes, num_blocks_headroom)
        if load is None:
            return False
        request.move_to(RequestStatus.WAITING_FOR_PREFIX)
        load.waiters.append(request)
        return True

    def wait(self, timeout_s: float) -> None:
        """Wait until a transfer is done."""
        if self._transfers is not None:
            self._transfers.wait(timeout_s)

    def finish(self) -> FinishedLoads:
        """Put what is loaded into the prefix cache, and free all blocks whose transfers are done."""
        finished = FinishedLoads()
        if self._transfers is None:
            return finished
        if self._transfers.has_finished:
            for done in self._transfers.take_finished():
                if done.transfer.is_load:
                    self._finish_load(done, finished)
                else:
                    self._num_offered -= len(done.transfer.blocks)
                    self._blocks.free(done.transfer.blocks)
        if self._loads:
            latest = self._clock() - _LONGEST_LOAD_S
            for transfer, load in self._loads.items():
                if load.waiters and load.started_at < latest:
                    self._stop_waiting(transfer, load, finished)
        return finished

    def drain(self) -> FinishedLoads:
        """Finish all transfers: the pool's blocks may be forgotten or freed then."""
        if self._transfers is not None:
            self._transfers.drain()
        return self.finish()

    def close(self, *, will_return: bool = False) -> None:
        """Close the store; where it `will_return`, it is opened again when it is next used, by the weights of then."""
        if self._transfers is not None:
            self._stats = self.stats
            self._transfers.close(will_return=will_return)
            self._transfers = None

    @property
    def stats(self) -> KVStoreStats:
        """Counters since the start, and sizes of the store."""
        before = self._stats
        now = KVStoreStats() if self._transfers is None else self._transfers.stats
        now.memory_hit_tokens_total = before.memory_hit_tokens_total
        now.disk_hit_tokens_total = before.disk_hit_tokens_total
        now.stored_blocks_total += before.stored_blocks_total
        now.evicted_blocks_total += before.evicted_blocks_total
        now.dropped_blocks_total += before.dropped_blocks_total
        now.damaged_blocks_total += before.damaged_blocks_total
        return now

    # Offers

    def offer(self, request: Request, token_ids: Int32Array, blocks: Sequence[int], first: int) -> None:
        """Offer a running request's full blocks from `first` on; `token_ids` and `blocks` are all up to the last one.

        What does not fit the queue is dropped.
        """
        transfers = self._opened()
        if transfers is None:
            return
        room = self._blocks.num_blocks // _PINNED_SHARE - self._num_offered
        offered = blocks[first : first + max(0, room)]
        self._stats.dropped_blocks_total += len(blocks) - first - len(offered)
        if not offered:
            return
        hashes = request.block_hashes.hashes
        self._blocks.pin(offered)
        self._num_offered += len(offered)
        transfers.start(
            Transfer(
                is_load=False,
                salt=request.salt,
                token_ids=token_ids,
                first=first,
                block_hashes=hashes[first : first + len(offered)],
                blocks=offered,
                parent=hashes[first - 1] if first else None,
            )
        )

    def _opened(self) -> BlockTransfers | None:
        """Open the store if it was closed; None if that fails."""
        if self._transfers is None and not self._has_failed:
            try:
                self._transfers = self._open_transfers()
            except (RayinferError, OSError) as error:
                self._has_failed = True
                _logger.warning("the machine's KV block store is not used any more: %s", error)
        return self._transfers

    def _start_load(
        self, request: Request, prefix: CachedPrefix, block_hashes: Sequence[bytes], num_blocks_headroom: int
    ) -> _Load | None:
        first, transfers = len(prefix.blocks), self._opened()
        if transfers is None:
            return None
        found = list(takewhile(transfers.may_have, islice(block_hashes, first, None)))
        if not found:
            return None
        self._blocks.pin(prefix.blocks)  # before anything is evicted
        num_needed = request.num_blocks_needed(self._blocks.block_size) - first
        if num_needed + num_blocks_headroom > self._blocks.num_free:
            self._blocks.free(prefix.blocks)
            return None
        request.is_load_done = True
        load = _Load(prefix=prefix.blocks, started_at=self._clock())
        transfer = Transfer(
            is_load=True,
            salt=request.salt,
            token_ids=request.token_ids,
            first=first,
            block_hashes=found,
            blocks=self._blocks.allocate(len(found)),
            parent=block_hashes[first - 1] if first else None,
        )
        self._loads[transfer] = load
        self._loading |= dict.fromkeys(found, load)
        transfers.start(transfer)
        return load

    def _finish_load(self, done: FinishedTransfer, finished: FinishedLoads) -> None:
        transfer, count = done.transfer, done.num_blocks
        load = self._loads.pop(transfer)
        # Blocks that turned out not to be finite are forgotten, also those that this load continues.
        if count and (not load.prefix or self._blocks.has_content(load.prefix[-1])):
            size = self._blocks.block_size
            blocks, last_of_prefix = list(transfer.blocks[:count]), load.prefix[-1] if load.prefix else None
            self._blocks.store_all(
                blocks,
                transfer.block_hashes[:count],
                parents=[last_of_prefix, *blocks[:-1]],
                token_ids=transfer.token_ids[transfer.first * size : (transfer.first + count) * size].reshape(-1, size),
                salts=[transfer.salt] * count,
            )
            finished.blocks += blocks
            self._stats.disk_hit_tokens_total += done.num_from_disk * size
            self._stats.memory_hit_tokens_total += (count - done.num_from_disk) * size
            for request in load.waiters:
                if request.trace is not None:
                    duration_ms = round(1e3 * done.duration_s, 3)
                    request.trace.record(
                        "loaded", tokens=count * size, from_disk=done.num_from_disk * size, duration_ms=duration_ms
                    )
        self._blocks.free([*load.prefix, *transfer.blocks])
        self._stop_waiting(transfer, load, finished)

    def _stop_waiting(self, transfer: Transfer, load: _Load, finished: FinishedLoads) -> None:
        """Queue the requests again that wait for a load, and let no other wait for it."""
        for block_hash in transfer.block_hashes:
            if self._loading.get(block_hash) is load:
                del self._loading[block_hash]
        for request in load.waiters:
            if request.status is RequestStatus.WAITING_FOR_PREFIX:
                request.move_to(RequestStatus.WAITING)
                finished.waiters.append(request)
        load.waiters.clear()
