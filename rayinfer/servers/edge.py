"""The outermost layer: bounds bodies, names requests and keeps failures inside; as plain ASGI, so that streams flow."""

import logging
import re
import time
import uuid
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayinfer.errors import RequestTooLarge
from rayinfer.metrics import ServiceMetrics
from rayinfer.servers.error_responses import error_response, refusal_reason

DEFAULT_MAX_BODY_BYTES = 4 * 2**20  # JSON is read in one go, while everybody else's tokens wait
MAX_REQUEST_ID_CHARS = 128
REQUEST_ID_HEADER = "x-request-id"

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RequestIdentity:
    """The name of a request in answers and logs: the client's own, cleaned, or one of ours; and when it came."""

    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    received_s: float = field(default_factory=time.time)  # since 1970

    def rename(self, wanted: str) -> None:
        """Take the client's word for it, as far as its characters are harmless."""
        if cleaned := cleaned_name(wanted):
            self.name = cleaned


def cleaned_name(wanted: str) -> str:
    """Keep what is harmless of a name that a client chose."""
    return re.sub(r"[^A-Za-z0-9._:-]", "", wanted[: 4 * MAX_REQUEST_ID_CHARS])[:MAX_REQUEST_ID_CHARS]


class Edge:
    """ASGI middleware around the whole application."""

    def __init__(
        self, app: ASGIApp, *, metrics: ServiceMetrics, max_body_bytes: int, echoes_request_id: bool = True
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes
        self._echoes_request_id = echoes_request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on inside its bounds; whatever escapes becomes a neutral 500."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, identity = Headers(scope=scope), RequestIdentity()
        identity.rename(headers.get(REQUEST_ID_HEADER, ""))
        scope.setdefault("state", {})["identity"] = identity
        answer = _Answer(send, identity if self._echoes_request_id else None)
        try:
            if _announced_bytes(headers) > self._max_body_bytes:
                raise self._too_large()
            await self._app(scope, self._bounded(receive), answer.send)
        except ClientDisconnect:
            pass  # it left before its body was complete: nobody to answer, nothing begun
        except Exception as error:
            if isinstance(error, RequestTooLarge):
                self._metrics.request_refused(refusal_reason(error))
            else:
                logger.exception("request %s failed", identity.name)
            if not answer.has_started:
                await error_response(error)(scope, receive, answer.send)

    def _bounded(self, receive: Receive) -> Receive:
        num_bytes = 0

        async def receive_within_bounds() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_body_bytes:
                raise self._too_large()
            return message

        return receive_within_bounds

    def _too_large(self) -> RequestTooLarge:
        return RequestTooLarge(f"The request's body is larger than {self._max_body_bytes} bytes.")


class _Answer:
    """The way back to the client: adds the request's name if it has one and remembers whether anything was sent."""

    def __init__(self, send: Send, identity: RequestIdentity | None) -> None:
        self._send = send
        self._identity = identity
        self.has_started = False

    async def send(self, message: Message) -> None:
        """Pass a message on to the client."""
        if message["type"] == "http.response.start":
            self.has_started = True
            if self._identity is not None:
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = self._identity.name
        await self._send(message)


def _announced_bytes(headers: Headers) -> int:
    length = headers.get("content-length", "")
    return int(length[:20]) if length.isascii() and length.isdigit() else 0
