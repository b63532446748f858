"""Copies of blocks between an engine's pool and the store, in a thread beside the steps."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayinfer.kv_cache.pool_pages import BlockViews
from rayinfer.kv_store.contents import content_digests
from rayinfer.kv_store.slot_file import Pieces
from rayinfer.kv_store.store import BlockName, KVBlockStore
from rayinfer.outputs import KVStoreStats

_logger = logging.getLogger(__name__)

_STATS_INTERVAL_S = 1.0  # bytes are counted over all slots


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Transfer:
    """Blocks of one sequence: blocks[i] of the pool is its block `first` + i, whose hash is block_hashes[i]."""

    is_load: bool  # into the pool, else into the store
    salt: bytes
    token_ids: NDArray[np.int32]  # the sequence, at least to the end of the last block
    first: int
    block_hashes: Sequence[bytes]
    blocks: Sequence[int]
    parent: bytes | None  # hash of the block before the first


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedTransfer:
    """A transfer and what came of it: only its first blocks may have been copied."""

    transfer: Transfer
    num_blocks: int
    num_from_disk: int = 0
    duration_s: float = 0.0


class BlockTransfers:
    """Makes the transfers of one engine, loads before others. The caller owns the blocks until they are done.

    A block of the pool that is being loaded is written here and by no step; one that is kept is full and is only read.
    """

    def __init__(self, store: KVBlockStore, views: Callable[[], BlockViews], block_size: int) -> None:
        self._store = store
        self.store_name, self.most_blocks = store.name, store.most_blocks
        self._views = views  # made for each transfer: the pool's memory may be freed and allocated again between two
        self._block_size = block_size
        self._loads: deque[Transfer] = deque()
        self._offers: deque[Transfer] = deque()
        self._done: deque[FinishedTransfer] = deque()
        self._changed = threading.Condition()
        self._is_working = self._is_closed = False
        self._num_dropped = 0
        self._num_bytes: Sequence[int] = store.num_bytes
        self._counted_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="kv-store", daemon=True)
        self._thread.start()

    def may_have(self, block_hash: bytes) -> bool:
        """Return whether the store has a block of this hash, which its load verifies."""
        return self._store.may_have(block_hash)

    def start(self, transfer: Transfer) -> None:
        """Queue a transfer."""
        with self._changed:
            (self._loads if transfer.is_load else self._offers).append(transfer)
            self._changed.notify_all()

    @property
    def has_finished(self) -> bool:
        """Whether `take_finished` would return any."""
        return bool(self._done)

    def take_finished(self) -> list[FinishedTransfer]:
        """Return the transfers that are done since the last call."""
        return [self._done.popleft() for _ in range(len(self._done))]

    def wait(self, timeout_s: float) -> None:
        """Wait until a transfer is done."""
        with self._changed:
            self._changed.wait_for(lambda: self._done, timeout_s)

    def drain(self) -> None:
        """Wait until all transfers are done: the pool may be freed then."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._loads or self._offers or self._is_working))

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is done and the disk has it too; returns whether it has."""
        self.drain()
        return self._store.flush(timeout_s)

    @property
    def stats(self) -> KVStoreStats:
        """Counters of this engine's part, but of what it has loaded, and sizes of the whole store."""
        store, (memory_bytes, disk_bytes) = self._store, self._num_bytes
        return KVStoreStats(
            memory_bytes=memory_bytes,
            disk_bytes=disk_bytes,
            stored_blocks_total=store.num_written,
            evicted_blocks_total=store.num_evicted,
            dropped_blocks_total=self._num_dropped + store.num_dropped,
            damaged_blocks_total=store.num_damaged,
        )

    def close(self, *, will_return: bool = False) -> None:
        """Finish the transfer that is being made, end the thread and close the store, for good or for a while."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()
        self._store.close(will_return=will_return)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_working = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._loads or self._offers or self._is_closed)
                if self._is_closed:
                    return
                self._is_working = True
                transfer = self._loads.popleft() if self._loads else self._offers.popleft()
            finished = FinishedTransfer(transfer=transfer, num_blocks=0)
            try:
                finished = self._make(transfer)
            except Exception:
                _logger.exception("a transfer of KV blocks failed")
            if not transfer.is_load:
                self._num_dropped += len(transfer.blocks) - finished.num_blocks
            with self._changed:
                self._done.append(finished)
            self._count_bytes()

    def _make(self, transfer: Transfer) -> FinishedTransfer:
        begun, stamp = time.monotonic(), time.time_ns() - transfer.first
        views, first = self._views(), transfer.first
        contents = content_digests(
            transfer.salt, transfer.token_ids, self._block_size, first, first + len(transfer.blocks)
        )
        num_blocks, num_from_disk, parent = 0, 0, transfer.parent
        for block, block_hash, content in zip(transfer.blocks, transfer.block_hashes, contents, strict=True):
            name, used = BlockName(block_hash, content), stamp - num_blocks
            if transfer.is_load:
                tier = self._store.load(name, _pieces_of(block, views), parent, used)
                num_from_disk += tier == "disk"
                is_copied = tier is not None
            else:
                is_copied = self._store.note_use(name, parent, used) or self._store.keep(
                    name, _pieces_of(block, views), parent, used
                )
            if not is_copied:
                break
            parent = block_hash
            num_blocks += 1
        return FinishedTransfer(
            transfer=transfer,
            num_blocks=num_blocks,
            num_from_disk=num_from_disk,
            duration_s=time.monotonic() - begun,
        )

    def _count_bytes(self) -> None:
        now = time.monotonic()
        if now - self._counted_at >= _STATS_INTERVAL_S:
            self._num_bytes, self._counted_at = self._store.num_bytes, now


def _pieces_of(block: int, views: BlockViews) -> Pieces:
    return [view[block].data for view in views]
