"""Fetches the blocks of a prefix into the machine's store, from which the engine then loads them as any others."""

import logging
import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rayinfer.kv_store.store import BlockName
from rayinfer.kv_transfer.limits import DEFAULT_TRANSFER_LIMITS, TransferLimits
from rayinfer.kv_transfer.messages import MAX_READ_BLOCKS
from rayinfer.kv_transfer.stored_blocks import StoredBlocks
from rayinfer.kv_transfer.transfer_agent import (
    LocalDescriptor,
    MemoryRegion,
    PeerAddress,
    TransferAgent,
    TransferRequest,
)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """Outcome of a fetch."""

    num_present: int = 0  # first blocks that the machine's store had
    num_fetched: int = 0  # that were added to it
    num_damaged: int = 0
    failure: str = ""  # why the others did not come; empty also where the peer has no more


class BlockFetcher:
    """Fetches are staged: blocks arrive in one half of a buffer while those of the other half go to the store.

    There are as many buffers as fetches at once; a fetch that gets none in time fetches nothing.
    """

    def __init__(
        self, agent: TransferAgent, store: StoredBlocks, limits: TransferLimits = DEFAULT_TRANSFER_LIMITS
    ) -> None:
        self._agent = agent
        self._store = store
        self._stall_s = limits.stall_s
        block_bytes = store.block_bytes
        self._window = min(MAX_READ_BLOCKS, max(1, limits.staging_bytes // (2 * block_bytes)))
        self._staging: queue.LifoQueue[MemoryRegion] = queue.LifoQueue()
        for _ in range(limits.num_fetches):  # the system gives memory at the first use
            memory = memoryview(bytearray(2 * self._window * block_bytes))
            self._staging.put(agent.register_memory(memory))

    def fetch(self, names: Sequence[BlockName], peer: PeerAddress, *, wait_s: float, timeout_s: float) -> Fetched:
        """Fetch the blocks of a chain that the store lacks, up to the first that the peer lacks, within `timeout_s`.

        `wait_s` is for blocks that the peer is about to have.
        """
        deadline = time.monotonic() + timeout_s
        num_present = self._store.num_present(names)
        if num_present == len(names):
            return Fetched(num_present=num_present)
        try:
            staging = self._staging.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return Fetched(num_present=num_present, failure="too many fetches at once")
        try:
            return _Fetch(self, staging, peer, deadline, wait_s).run(names, num_present)
        finally:
            self._staging.put(staging)

    def wait_for(self, names: Sequence[BlockName], *, timeout_s: float) -> Fetched:
        """Wait until the machine's store has the blocks of a chain, which another of its engines writes."""
        num_present = self._store.wait_for(names, time.monotonic() + timeout_s, self._stall_s)
        return Fetched(num_present=num_present, failure="" if num_present == len(names) else "blocks did not come")

    def close(self) -> None:
        """End all fetches."""
        self._agent.close()


class _Fetch:
    """One fetch, with its buffer."""

    def __init__(
        self, fetcher: BlockFetcher, staging: MemoryRegion, peer: PeerAddress, deadline: float, wait_s: float
    ) -> None:
        self._agent, self._store, self._window = fetcher._agent, fetcher._store, fetcher._window
        self._staging = staging
        self._peer = peer
        self._deadline = deadline
        self._wait_s = wait_s

    def run(self, names: Sequence[BlockName], num_present: int) -> Fetched:
        """Move window after window; two are in flight."""
        parent = names[num_present - 1].key if num_present else None
        windows = [names[start : start + self._window] for start in range(num_present, len(names), self._window)]
        posted: list[TransferRequest] = [self._post(windows[0], 0)]
        num_fetched, number, failure = 0, 0, ""
        try:
            for number, window in enumerate(windows):
                if number + 1 < len(windows):
                    posted.append(self._post(windows[number + 1], number + 1))
                num_stored = self._store_arriving(posted[number], parent)
                num_fetched += num_stored
                parent = window[-1].key
                if num_stored < len(window):
                    break
        finally:
            for index, request in enumerate(posted):
                self._agent.release(request)  # before the buffer is another's
                if index <= number:  # a later one ends because this one was the last
                    failure = failure or request.failure
        return Fetched(
            num_present=num_present,
            num_fetched=num_fetched,
            num_damaged=sum(request.num_damaged for request in posted),
            failure=failure,
        )

    def _post(self, names: Sequence[BlockName], number: int) -> TransferRequest:
        block_bytes = self._store.block_bytes
        first = number % 2 * self._window
        local = [LocalDescriptor(self._staging, (first + index) * block_bytes) for index in range(len(names))]
        left_s = max(0.0, self._deadline - time.monotonic())
        request = self._agent.initialize_transfer(
            local, names, self._peer, wait_s=min(self._wait_s, left_s), timeout_s=left_s
        )
        self._agent.post(request)
        return request

    def _store_arriving(self, request: TransferRequest, parent: bytes | None) -> int:
        """Write each block to the store as soon as it has arrived; returns how many the store has."""
        block_bytes = self._store.block_bytes
        for index, (name, place) in enumerate(zip(request.names, request.local, strict=True)):
            left_s = max(0.0, self._deadline - time.monotonic())
            if self._agent.wait(request, index + 1, left_s) <= index:
                return index
            block = place.region.memory[place.offset : place.offset + block_bytes]
            try:
                is_stored = self._store.write(name, block, parent)
            except OSError as error:
                _logger.warning("a fetched KV block could not be stored: %s", error)
                is_stored = False
            if not is_stored:
                request.failure = request.failure or "the store does not take blocks"
                return index
            parent = name.key
        return len(request.names)
