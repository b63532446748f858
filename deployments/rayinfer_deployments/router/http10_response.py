"""Response framing for HTTP/1.0 clients, which know no chunks: a body of unknown length ends with the connection."""

from typing import TYPE_CHECKING

from starlette.types import Message

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Http10Response:
    """Sender of one response through uvicorn's cycle, which chunks every body of unknown length.

    The cycle closes the connection behind it, as it does for every HTTP/1.0 request.
    """

    def __init__(self, cycle: "RequestResponseCycle") -> None:
        self._cycle = cycle
        self._send = cycle.send
        self._has_unknown_length = False

    async def send(self, message: Message) -> None:
        """Send a message of the application."""
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            self._has_unknown_length = b"content-length" not in names
            if self._has_unknown_length:
                self._cycle.chunked_encoding = False
        elif self._has_unknown_length:
            # Several parts may wait for a slow client: the length is set when nothing can come between it and its part.
            while self._cycle.flow.write_paused and not self._cycle.disconnected:
                await self._cycle.flow.drain()
            self._cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)  # type: ignore[arg-type]  # Starlette's type of a message is wider
