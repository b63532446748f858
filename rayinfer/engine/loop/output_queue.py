"""Output queue of one router: written by the engine's thread, read by the router's event loop."""

import asyncio
import threading

from rayinfer.outputs import StepMessage


class OutputQueue:
    """A queue of at most one message: a router that is behind gets all outputs since its last read merged into one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: StepMessage | None = None
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived: asyncio.Event | None = None

    def put(self, message: StepMessage) -> None:
        """Add a message, from any thread; never waits."""
        with self._lock:
            self._pending = message if self._pending is None else _merged(self._pending, message)
            self._wake()

    def close(self) -> None:
        """Mark the end of messages."""
        with self._lock:
            self._closed = True
            self._wake()

    async def get(self, timeout_s: float | None = None) -> StepMessage | None:
        """Wait for the next message; None once the queue is closed and empty.

        Raises TimeoutError when none arrives in time.
        """
        with self._lock:
            self._loop, self._arrived = asyncio.get_running_loop(), asyncio.Event()
            if self._pending is not None or self._closed:
                self._arrived.set()
            arrived = self._arrived
        try:
            async with asyncio.timeout(timeout_s):
                await arrived.wait()
        finally:
            with self._lock:
                self._loop = None  # the loop of a cancelled reader may be closed
        with self._lock:
            message, self._pending = self._pending, None
        return message

    def _wake(self) -> None:
        if self._loop is not None and self._arrived is not None:
            self._loop.call_soon_threadsafe(self._arrived.set)
            self._loop = None  # one wake-up for each get is enough


def _merged(earlier: StepMessage, later: StepMessage) -> StepMessage:
    removed = dict.fromkeys(earlier.blocks_removed)
    stored = dict.fromkeys(earlier.blocks_stored)
    for block_hash in later.blocks_stored:
        removed.pop(block_hash, None)
        stored[block_hash] = None
    for block_hash in later.blocks_removed:
        stored.pop(block_hash, None)
        removed[block_hash] = None
    return StepMessage(
        deltas=earlier.deltas + later.deltas,
        stats=later.stats,
        blocks_stored=list(stored),
        blocks_removed=list(removed),
    )
