"""Admits requests by their keys before anything of their bodies is read, and logs them; as plain ASGI."""

from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayinfer.access.access_control import AccessControl
from rayinfer.access.authenticator import Authenticator
from rayinfer.access.caller import Caller
from rayinfer.errors import PermissionDenied, RayinferError
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.access.access_log import AccessLog
from rayinfer.servers.access.open_paths import is_open, route_path, scope_of
from rayinfer.servers.access.request_record import CLIENT_LEFT, RequestRecord
from rayinfer.servers.error_formats import error_format_of
from rayinfer.servers.error_responses import error_response, refusal_reason


class AccessMiddleware:
    """ASGI middleware that sets `caller` and `record` of a request's state.

    The path that counts is the one that routes are found by, which no header of a client changes.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: AccessControl | None,
        metrics: ServiceMetrics,
        log: AccessLog | None,
        *,
        opens_load: bool = False,
    ) -> None:
        self._app = app
        self._access = access
        self._metrics = metrics
        self._log = log
        self._opens_load = opens_load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        address = client[0] if client else ""
        exchange = _Exchange(send, self._access)
        if self._log is None:
            await self._pass_on(scope, receive, exchange, address)
            return
        identity = scope["state"]["identity"]
        scope["state"]["record"] = record = RequestRecord(
            method=scope["method"],
            path=scope["path"],
            client=address,
            received_s=identity.received_s,
            traceparent=Headers(scope=scope).get("traceparent", ""),
        )
        try:
            await self._pass_on(scope, receive, exchange, address)
        except Exception as error:
            if exchange.status == CLIENT_LEFT and not isinstance(error, ClientDisconnect):
                exchange.status = HTTPStatus.INTERNAL_SERVER_ERROR  # which the layer above answers with
            raise
        finally:
            self._log.write(record.as_json(identity.name, exchange.caller, exchange.status))

    async def _pass_on(self, scope: Scope, receive: Receive, exchange: "_Exchange", address: str) -> None:
        if self._access is not None:
            try:
                self._admit(self._access.authenticator, scope, exchange, address)
            except RayinferError as error:
                self._metrics.request_refused(refusal_reason(error))
                await error_response(error, error_format_of(scope))(scope, receive, exchange.send)
                return
        await self._app(scope, receive, exchange.send)

    def _admit(self, authenticator: Authenticator, scope: Scope, exchange: "_Exchange", address: str) -> None:
        if isinstance(within := scope["state"].get("caller"), Caller):  # a batch's row, which no client can send
            exchange.caller = within
            return
        headers = Headers(scope=scope)
        if is_open(scope["method"], route_path(scope), opens_load=self._opens_load):
            exchange.caller = scope["state"]["caller"] = authenticator.recognize(headers, address)
            return
        exchange.caller = scope["state"]["caller"] = authenticator.authenticate(headers, address)
        if not exchange.caller.has_scope(wanted := scope_of(route_path(scope))):
            raise PermissionDenied(f"The API key lacks the scope {wanted.value!r}.")
        authenticator.admit(exchange.caller)


class _Exchange:
    """The way back to a client: notes the status, and adds what is left of the key's limits."""

    def __init__(self, send: Send, access: AccessControl | None) -> None:
        self._send = send
        self._access = access
        self.caller = Caller()
        self.status: int = CLIENT_LEFT

    async def send(self, message: Message) -> None:
        """Pass a message on to the client."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.caller.key is not None and self._access is not None:
                message["headers"] = [*message.get("headers", ()), *self._access.limits.headers(self.caller.key)]
        await self._send(message)
