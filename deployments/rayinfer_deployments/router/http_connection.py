"""Client connection to the router's own port: uvicorn's, with timeouts and size limits."""

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rayinfer.error_kinds import error_kind
from rayinfer.errors import HeadersTooLarge, RequestError, RequestTooSlow, Unavailable
from rayinfer.servers.error_responses import error_body
from rayinfer_deployments.router.connection_limits import DEFAULT_CONNECTION_LIMITS, Connection, ConnectionTable, Phase
from rayinfer_deployments.router.http10_response import Http10Response

STALLED_S = 60.0  # how long a client may read nothing of its response
HEAD_TIMEOUT_S = 10.0  # from a connection's begin, or a request's first byte, to the end of its headers
CLOSE_S = 1.0  # for the end of a connection on which all has been sent
MAX_HEAD_BYTES = 2 * 32 * 2**10  # held in memory until they are parsed; the exact limit is the application's


class HttpConnection(HttpToolsProtocol):
    """Connection that closes on a slow request head, and on an unfinished request that has its response already.

    While the application reads a body or responds, it sets the time limits. A client that is still sending after
    the last response is read for a while, and its data dropped: when more arrives at a closed socket, the kernel
    discards the unread part of a response.
    """

    head_timeout_s = HEAD_TIMEOUT_S
    stalled_s = STALLED_S
    max_head_bytes = MAX_HEAD_BYTES

    _awaiting: asyncio.TimerHandle | None = None
    _stalling: asyncio.TimerHandle | None = None
    _num_pending_bytes = 0  # came since the parser last reached the end of something
    _is_in_head = False
    _is_mid_message = False
    _is_lingering = False
    _is_evicted = False
    _is_closing = False
    _is_lost = False

    def __init__(self, *args: Any, table: ConnectionTable[Connection] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table: ConnectionTable[Connection] = (
            ConnectionTable(DEFAULT_CONNECTION_LIMITS) if table is None else table
        )

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect a request, unless there are too many connections."""
        super().connection_made(transport)
        self._await_client()
        if not self._table.add(self, self.client[0] if self.client else ""):
            self._refuse(Unavailable("There are too many connections to this service."))
            self._is_evicted = True
            self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        self._table.remove(self)
        self._stop_awaiting()
        self._is_lost = True
        self.resume_writing()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection without a request."""
        self._close()

    def shutdown(self) -> None:
        """Close the connection, behind a response in flight."""
        super().shutdown()
        if self.transport.is_closing():
            self._close()

    def data_received(self, data: bytes) -> None:
        """Parse what came; refuses a head, or trailers, that do not end."""
        if self._is_lingering or self._is_evicted:
            return
        self._num_pending_bytes += len(data)
        super().data_received(data)
        if self._num_pending_bytes > self.max_head_bytes:
            self._refuse(HeadersTooLarge(f"The request's headers are larger than {self.max_head_bytes} bytes."))
        elif not self._is_responding:
            self._await_client()  # before its request is whole, uvicorn waits for as long as bytes come

    def pause_writing(self) -> None:
        """Wait for a client that does not read, for a limited time."""
        super().pause_writing()
        if self._stalling is None:
            self._expect_reading(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Resume writing."""
        super().resume_writing()
        self._stop_expecting()
        if self._is_closing and not self._is_lost:
            self._expect_reading(self.transport.get_write_buffer_size())

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._is_in_head = self._is_mid_message = True
        super().on_message_begin()
        self._note_phase()

    def on_headers_complete(self) -> None:
        """Start the application on a request."""
        self._num_pending_bytes = 0
        self._is_in_head = False
        super().on_headers_complete()
        self._stop_awaiting()
        self.cycle.transport = _ResponseTransport(self)  # type: ignore[assignment]  # it calls no more than this has
        if self.scope["http_version"] == "1.0":
            self.cycle.send = Http10Response(self.cycle).send  # type: ignore[method-assign, assignment]
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False  # behind this request comes another protocol, which we do not speak
        self._note_phase()

    def on_body(self, body: bytes) -> None:
        """Keep a part of a body for the application."""
        self._num_pending_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._num_pending_bytes = 0
        self._is_mid_message = False
        super().on_message_complete()
        self._note_phase()

    def on_response_complete(self) -> None:
        """Start the next request; the rest of this one's body has a time limit as well."""
        super().on_response_complete()
        if self._is_mid_message and not self._is_responding:
            self._await_client()
        self._note_phase()

    def evict(self) -> None:
        """Close the connection at once, to free its slot for another; what its client has not read is dropped."""
        self._is_evicted = True
        self.transport.abort()

    def end(self) -> None:
        """Close behind the last response: at once if the whole request was received, else after a delay."""
        if self._is_mid_message:
            self._linger()
        else:
            self._close()

    def send_400_response(self, msg: str) -> None:
        """Respond to input that is not HTTP, with our own error message."""
        self._refuse(RequestError("The request is not valid HTTP.", code="invalid_http"))

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: clients may ask for other protocols as often as they like."""

    @property
    def _is_responding(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _note_phase(self) -> None:
        if self._is_evicted:
            return
        if self.pipeline or (self._is_in_head and self._is_responding):  # an earlier response is in flight
            phase = Phase.RESPONDING
        elif self._is_mid_message and not self._is_lingering:
            phase = Phase.RECEIVING
        else:
            phase = Phase.RESPONDING if self._is_responding else Phase.IDLE
        self._table.enter(self, phase)

    def _await_client(self) -> None:
        if self._awaiting is None and not self.transport.is_closing():
            self._awaiting = self.loop.call_later(self.head_timeout_s, self._give_up)

    def _stop_awaiting(self) -> None:
        if self._awaiting is not None:
            self._awaiting.cancel()
            self._awaiting = None

    def _give_up(self) -> None:
        self._awaiting = None
        if self._is_in_head and not self._is_lingering:
            self._refuse(RequestTooSlow("The request's headers came too slowly."))
        else:
            self._close()

    def _refuse(self, error: RequestError | Unavailable) -> None:
        """Respond and close; a response in flight ends there."""
        if not self.transport.is_closing() and not self._is_responding:
            status, body = HTTPStatus(error_kind(error).status), error_body(error)
            lines = (
                f"HTTP/1.1 {status} {status.phrase}",
                "content-type: application/json",
                f"content-length: {len(body)}",
                "connection: close",
            )
            self.transport.write("\r\n".join((*lines, "", "")).encode() + body)
            self._linger()
        else:
            self._close()

    def _close(self) -> None:
        """Close the connection behind what was written, as long as its client reads on.

        A transport would wait for its client without a limit, and one of TLS for the client's farewell.
        """
        self.transport.close()
        if self._is_closing:
            return
        self._is_closing = True
        if self._stalling is None:
            self._expect_reading(self.transport.get_write_buffer_size())

    def _expect_reading(self, num_bytes: int) -> None:
        self._stalling = self.loop.call_later(self.stalled_s if num_bytes else CLOSE_S, self._check_reading, num_bytes)

    def _check_reading(self, num_bytes: int) -> None:
        """Cut off a client that has read nothing since there were `num_bytes` to be sent."""
        if (num_left := self.transport.get_write_buffer_size()) < num_bytes:
            self._expect_reading(num_left)
        else:
            self.transport.abort()

    def _stop_expecting(self) -> None:
        if self._stalling is not None:
            self._stalling.cancel()
            self._stalling = None

    def _linger(self) -> None:
        """Shut down the sending side, and close the connection when the client does, or after a delay."""
        self._is_lingering = True
        self._note_phase()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._stop_awaiting()
        self._await_client()


class _ResponseTransport:
    """Response transport, whose `close` ends the connection as HttpConnection does: behind what was written."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection
        self.write = connection.transport.write
        self.is_closing = connection.transport.is_closing

    def close(self) -> None:
        """End the connection behind what was written."""
        self._connection.end()
