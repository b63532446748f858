"""In-flight prefix sharing: blocks that a running request is about to write, and the requests that wait for them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rayinfer.engine.scheduling.request import Request, RequestStatus


@dataclass(slots=True)
class _PendingBlock:
    writer: Request
    waiters: list[Request] = field(default_factory=list)


class InFlightPrefixes:
    """Digests of blocks about to be written; a request whose next block is among them waits (singleflight).

    It does not wait for a writer of lower priority, which may be scheduled late.
    """

    def __init__(self) -> None:
        self._pending: dict[bytes, _PendingBlock] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def register(self, writer: Request, digests: Sequence[bytes]) -> None:
        """Register the blocks' writer; blocks with a writer of the same or higher priority keep it."""
        for digest in digests:
            pending = self._pending.setdefault(digest, _PendingBlock(writer))
            if writer.priority < pending.writer.priority:
                pending.writer = writer

    def is_pending(self, digest: bytes, request: Request) -> bool:
        """Return whether a writer that this request may wait for is about to write the block."""
        pending = self._pending.get(digest)
        return pending is not None and pending.writer.priority <= request.priority

    def add_waiter(self, request: Request, digest: bytes) -> None:
        """Let the request wait until the block is written or its writer leaves."""
        request.move_to(RequestStatus.WAITING_FOR_PREFIX)
        self._pending[digest].waiters.append(request)

    def resolve(self, writers: Iterable[Request], digests: Iterable[bytes]) -> list[Request]:
        """Resolve blocks that are written, or whose writer leaves; returns their waiters, to be queued again."""
        waiters_done: list[Request] = []
        for writer, digest in zip(writers, digests, strict=False):
            pending = self._pending.get(digest)
            if pending is not None and pending.writer is writer:
                del self._pending[digest]
                waiters_done += [
                    request for request in pending.waiters if request.status is RequestStatus.WAITING_FOR_PREFIX
                ]
        for request in waiters_done:
            request.move_to(RequestStatus.WAITING)
        return waiters_done
