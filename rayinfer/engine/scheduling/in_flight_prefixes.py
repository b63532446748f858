"""In-flight prefix sharing: blocks that a running request is about to write, and the requests that wait for them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rayinfer.engine.scheduling.request import Request, RequestStatus


@dataclass(slots=True)
class _PendingBlock:
    writer: Request
    waiters: list[Request] = field(default_factory=list)


class InFlightPrefixes:
    """Hashes of blocks about to be written; a request whose next block is among them waits (singleflight).

    It does not wait for a writer of lower priority, which may be scheduled late.
    """

    def __init__(self) -> None:
        self._pending: dict[bytes, _PendingBlock] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def register(self, writer: Request, block_hashes: Sequence[bytes]) -> None:
        """Register the blocks' writer; blocks with a writer of the same or higher priority keep it."""
        for block_hash in block_hashes:
            pending = self._pending.setdefault(block_hash, _PendingBlock(writer))
            if writer.priority < pending.writer.priority:
                pending.writer = writer

    def is_pending(self, block_hash: bytes, request: Request) -> bool:
        """Return whether a writer that this request may wait for is about to write the block."""
        pending = self._pending.get(block_hash)
        return pending is not None and pending.writer.priority <= request.priority

    def add_waiter(self, request: Request, block_hash: bytes) -> None:
        """Let the request wait until the block is written or its writer leaves."""
        request.move_to(RequestStatus.WAITING_FOR_PREFIX)
        self._pending[block_hash].waiters.append(request)

    def resolve(self, writers: Iterable[Request], block_hashes: Iterable[bytes]) -> list[Request]:
        """Resolve blocks that are written, or whose writer leaves; returns their waiters, to be queued again."""
        waiters_done: list[Request] = []
        for writer, block_hash in zip(writers, block_hashes, strict=False):
            pending = self._pending.get(block_hash)
            if pending is not None and pending.writer is writer:
                del self._pending[block_hash]
                waiters_done += [
                    request for request in pending.waiters if request.status is RequestStatus.WAITING_FOR_PREFIX
                ]
        for request in waiters_done:
            request.move_to(RequestStatus.WAITING)
        return waiters_done
