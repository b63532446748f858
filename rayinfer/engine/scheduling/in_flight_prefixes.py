"""In-flight prefix blocks, which a running request is about to write, and the requests that wait for them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rayinfer.engine.scheduling.request import Request, RequestStatus


@dataclass(slots=True)
class _PendingBlock:
    writer: Request
    parked: list[Request] = field(default_factory=list)


class PrefixesUnderWay:
    """Digests that will be hit-able soon; a request whose next block is among them is parked.

    Not behind a writer of lower priority, which may be scheduled late.
    """

    def __init__(self) -> None:
        self._pending: dict[bytes, _PendingBlock] = {}

    def announce(self, writer: Request, digests: Sequence[bytes]) -> None:
        """Register the blocks' writer; blocks with a writer of the same or higher priority keep it."""
        for digest in digests:
            pending = self._pending.setdefault(digest, _PendingBlock(writer))
            if writer.priority < pending.writer.priority:
                pending.writer = writer

    def is_under_way(self, digest: bytes, request: Request) -> bool:
        """Whether a request that this one may wait for is about to write the block."""
        pending = self._pending.get(digest)
        return pending is not None and pending.writer.priority <= request.priority

    def park(self, request: Request, digest: bytes) -> None:
        """Let the request wait until the block is written or given up."""
        request.move_to(RequestStatus.PARKED)
        self._pending[digest].parked.append(request)

    def settle(self, writers: Iterable[Request], digests: Iterable[bytes]) -> list[Request]:
        """Resolve blocks that are written or given up; returns the waiters that may run now."""
        released: list[Request] = []
        for writer, digest in zip(writers, digests, strict=False):
            pending = self._pending.get(digest)
            if pending is not None and pending.writer is writer:
                del self._pending[digest]
                released += [request for request in pending.parked if request.status is RequestStatus.PARKED]
        for request in released:
            request.move_to(RequestStatus.WAITING)
        return released
