"""Bounds on a request's size and slowness, checked before anything else reads it; as plain ASGI.

It stands before an application of ours as well as in Serve's proxies, so it knows neither metrics nor models.
"""

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayinfer.errors import HeadersTooLarge, RequestError, RequestTooLarge, RequestTooSlow
from rayinfer.servers.error_formats import error_format_of
from rayinfer.servers.error_responses import error_response

DEFAULT_MAX_BODY_BYTES = 4 * 2**20  # JSON is read in one go, while other requests' tokens wait
MAX_BODY_BYTES = 64 * 2**20  # whatever an application allows: Serve's proxies hold bodies in memory
MAX_REQUEST_ID_CHARS = 128
REQUEST_ID_HEADER = "x-request-id"

# Serve's proxy acts on them: a client could keep engines at work after it has left, or end the operator's time limit.
SERVE_CONTROL_HEADERS = (b"x-request-disconnect-disabled", b"x-request-timeout-seconds")
# Serve's proxy decodes them and fails with 500 where they are no UTF-8; also with dashes for underscores.
DECODED_BY_SERVE = (b"serve_multiplexed_model_id", b"x_session_id", b"traceparent", b"tracestate")


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestBounds:
    """The most that one request may have, in size and in time."""

    max_headers: int = 100
    max_header_bytes: int = 32 * 2**10  # of all names and values, and of the path with its query
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    max_body_gap_s: float = 10.0  # until the next part of a body
    body_grace_s: float = 10.0  # of waiting for a body, beyond what the least rate allows
    min_body_bytes_per_s: float = 4096.0


class BoundedRequests:
    """ASGI middleware that refuses what is out of bounds and takes out headers that would give Serve orders."""

    def __init__(
        self,
        app: ASGIApp,
        bounds: RequestBounds,
        on_refusal: Callable[[RequestError], None] = lambda _: None,
        max_body_bytes: Callable[[Scope], int] | None = None,
    ) -> None:
        """Take bounds, of which `max_body_bytes` may depend on the request."""
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._bounds = bounds
        self._on_refusal = on_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on inside its bounds, or answer it with the reason why not."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        scope["headers"] = _harmless_headers(scope["headers"])
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return
        bounds = self._bounds
        if self._max_body_bytes is not None:
            bounds = replace(bounds, max_body_bytes=self._max_body_bytes(scope))
        exchange = _Exchange(scope, receive, send, bounds, self._on_refusal)
        try:
            _check_head(scope, bounds)
        except RequestError as error:
            await exchange.refuse(error)
        else:
            await self._app(scope, exchange.receive, exchange.send)


class _Exchange:
    """One request and its answer: once refused, the application gets a disconnect, and its sends are dropped."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        bounds: RequestBounds,
        on_refusal: Callable[[RequestError], None],
    ) -> None:
        self._scope = scope
        self._send = send
        self._on_refusal = on_refusal
        self._body = _Body(receive, bounds)
        self._has_started = False
        self._is_refused = False

    async def receive(self) -> Message:
        """Receive for the application."""
        try:
            return await self._body.receive()
        except RequestError as error:
            await self.refuse(error)
            return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send for the application."""
        if self._is_refused:
            return
        self._has_started = True
        await self._send(message)

    async def refuse(self, error: RequestError) -> None:
        """Answer in the application's place, unless it has begun to."""
        self._is_refused = True
        self._on_refusal(error)
        if not self._has_started:
            response = error_response(error, error_format_of(self._scope))
            if name := cleaned_name(Headers(scope=self._scope).get(REQUEST_ID_HEADER, "")):
                response.headers[REQUEST_ID_HEADER] = name
            await response(self._scope, self._body.receive, self._send)


class _Body:
    """A request's body as it comes; only time spent waiting for the client counts against it."""

    def __init__(self, receive: Receive, bounds: RequestBounds) -> None:
        self._receive = receive
        self._bounds = bounds
        self._num_bytes = 0
        self._waited_s = 0.0
        self._is_complete = False

    async def receive(self) -> Message:
        """Receive the next part; raises RequestTooLarge or RequestTooSlow."""
        if self._is_complete:
            return await self._receive()  # which now only waits for the client to leave
        started_s = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout_s()):
                message = await self._receive()
        except TimeoutError:
            raise RequestTooSlow(f"The request's body came too slowly: {self._num_bytes} bytes so far.") from None
        self._waited_s += time.monotonic() - started_s
        self._num_bytes += len(message.get("body", b""))
        self._is_complete = not message.get("more_body", False)
        if self._num_bytes > self._bounds.max_body_bytes:
            raise _body_too_large(self._bounds)
        return message

    def _timeout_s(self) -> float:
        bounds = self._bounds
        allowed_s = bounds.body_grace_s + self._num_bytes / bounds.min_body_bytes_per_s
        return max(0.0, min(bounds.max_body_gap_s, allowed_s - self._waited_s))


def cleaned_name(wanted: str) -> str:
    """Keep what is harmless of a name that a client chose."""
    return re.sub(r"[^A-Za-z0-9._:-]", "", wanted[: 4 * MAX_REQUEST_ID_CHARS])[:MAX_REQUEST_ID_CHARS]


def _check_head(scope: Scope, bounds: RequestBounds) -> None:
    headers = scope["headers"]
    if len(headers) > bounds.max_headers:
        raise HeadersTooLarge(f"The request has more than {bounds.max_headers} headers.")
    num_bytes = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
    if num_bytes + sum(len(name) + len(value) for name, value in headers) > bounds.max_header_bytes:
        raise HeadersTooLarge(f"The request's address and headers are larger than {bounds.max_header_bytes} bytes.")
    length = Headers(scope=scope).get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > bounds.max_body_bytes:
        raise _body_too_large(bounds)


def _harmless_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Leave out what Serve would act on or fail at, and clean the request's name, which it copies into logs."""
    harmless = []
    for name, value in headers:
        if name == REQUEST_ID_HEADER.encode():
            value = cleaned_name(value.decode("latin-1")).encode()
            if not value:
                continue
        is_decoded = name.replace(b"-", b"_") in DECODED_BY_SERVE
        if name in SERVE_CONTROL_HEADERS or not name.isascii() or (is_decoded and not _is_utf8(value)):
            continue
        harmless.append((name, value))
    return harmless


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _body_too_large(bounds: RequestBounds) -> RequestTooLarge:
    return RequestTooLarge(f"The request's body is larger than {bounds.max_body_bytes} bytes.")
