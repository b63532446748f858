"""The outermost layer: bounds and names requests and keeps failures inside; as plain ASGI, so that streams flow."""

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.error_formats import anthropic_error, error_format_of, speaks_anthropic
from rayinfer.servers.error_responses import error_response, refusal_reason
from rayinfer.servers.request_bounds import REQUEST_ID_HEADER, BoundedRequests, RequestBounds, cleaned_name

ANTHROPIC_REQUEST_ID = "request-id"

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RequestIdentity:
    """The name of a request in answers and logs: the client's own, cleaned, or one of ours; and when it came."""

    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    received_s: float = field(default_factory=time.time)  # since 1970

    def rename(self, wanted: str) -> None:
        """Take the client's name, as far as its characters are harmless."""
        if cleaned := cleaned_name(wanted):
            self.name = cleaned


class RequestBoundary:
    """ASGI middleware around the whole application."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: ServiceMetrics,
        bounds: RequestBounds,
        max_body_bytes: Callable[[Scope], int] | None = None,
        echoes_request_id: bool = True,
    ) -> None:
        self._app = BoundedRequests(
            app, bounds, lambda error: metrics.request_refused(refusal_reason(error)), max_body_bytes
        )
        self._echoes_request_id = echoes_request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on inside its bounds; whatever escapes becomes a neutral 500."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        identity = RequestIdentity()
        identity.rename(Headers(scope=scope).get(REQUEST_ID_HEADER, ""))
        scope.setdefault("state", {})["identity"] = identity
        names = [REQUEST_ID_HEADER] if self._echoes_request_id else []
        if speaks_anthropic(scope) or error_format_of(scope) is anthropic_error:
            names.append(ANTHROPIC_REQUEST_ID)
        sender = _Sender(send, identity, names)
        try:
            await self._app(scope, receive, sender.send)
        except ClientDisconnect:
            pass  # it left, or was refused, before its body was complete: nothing begun
        except Exception as error:
            logger.exception("request %s failed", identity.name)
            if not sender.has_started:
                await error_response(error, error_format_of(scope))(scope, receive, sender.send)


class _Sender:
    """The way back to the client: adds the request's name and remembers whether anything was sent."""

    def __init__(self, send: Send, identity: RequestIdentity, headers: Sequence[str]) -> None:
        self._send = send
        self._identity = identity
        self._headers = headers  # that have the request's name
        self.has_started = False

    async def send(self, message: Message) -> None:
        """Pass a message on to the client."""
        if message["type"] == "http.response.start":
            self.has_started = True
            for header in self._headers:
                MutableHeaders(scope=message)[header] = self._identity.name
        await self._send(message)
