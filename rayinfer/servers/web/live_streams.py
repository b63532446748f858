"""Limit on the open streams of the live view: in all, and from one address."""

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from rayinfer.errors import Unavailable
from rayinfer.servers.generation.server_sent_events import EVENT_HEADERS, EVENT_STREAM

MAX_STREAMS = 128  # of one router
MAX_STREAMS_PER_ADDRESS = 32  # a gateway in front has one address for all its clients; a browser has one stream
RETRY_S = 10.0  # the page tries again by itself


class LiveStreams:
    """Count of open streams. They hold their connections, which are never closed during a response.

    A new stream beyond a limit is refused: if it ended the oldest one, whose page connects again, the two would take
    turns without end.
    """

    def __init__(self, max_streams: int = MAX_STREAMS, max_per_address: int = MAX_STREAMS_PER_ADDRESS) -> None:
        self._max_streams = max_streams
        self._max_per_address = max_per_address
        self._num_of_address: Counter[str] = Counter()

    @contextlib.contextmanager
    def open(self, address: str) -> Iterator[None]:
        """Count a stream to an address while the block lasts; raises Unavailable when there are too many."""
        is_full = self._num_of_address.total() >= self._max_streams
        if is_full or self._num_of_address[address] >= self._max_per_address:
            raise Unavailable(f"Too many live views are open{'' if is_full else ' from this address'}.", RETRY_S)
        self._num_of_address[address] += 1
        try:
            yield
        finally:
            self._num_of_address[address] -= 1
            if not self._num_of_address[address]:
                del self._num_of_address[address]


class LiveResponse(StreamingResponse):
    """Stream of events that counts from before its first byte until it ends or its client has left."""

    def __init__(self, events: AsyncIterator[bytes], streams: LiveStreams, address: str) -> None:
        super().__init__(events, headers=EVENT_HEADERS, media_type=EVENT_STREAM)
        self._streams = streams
        self._address = address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; raises Unavailable, before anything is sent, when there are too many streams."""
        with self._streams.open(self._address):
            await super().__call__(scope, receive, send)
