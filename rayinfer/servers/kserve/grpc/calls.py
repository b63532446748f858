"""Calls of gRPC: their callers and deadlines, and the way of errors to their statuses."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError

from rayinfer.access.api_key import Scope
from rayinfer.error_kinds import error_kind
from rayinfer.errors import InvalidParameter, PermissionDenied, RequestTooLarge, Unavailable
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.caller import Caller, RequestContext
from rayinfer.servers.error_responses import public_error, refusal_reason
from rayinfer.servers.json_body import LONG_BODY_BYTES
from rayinfer.servers.kserve.grpc import inference_pb2 as pb
from rayinfer.servers.kserve.grpc.message_bounds import check_message_bounds
from rayinfer.servers.kserve.grpc.status_codes import status_code
from rayinfer.servers.request_boundary import RequestIdentity
from rayinfer.servers.request_bounds import REQUEST_ID_HEADER

MAX_OTHER_MESSAGE_BYTES = 2**14  # of all calls but those that infer: they have names and few settings

logger = logging.getLogger(__name__)

# From a call's headers and its client's address; raises the error of a caller that is refused.
Identify = Callable[[Mapping[str, str], str], Caller]


@dataclass(frozen=True, slots=True)
class Call:
    """Caller, name and deadline of one call."""

    caller: Caller
    name: str  # the client's own; "" for none
    deadline_s: float | None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    server: tuple[str, int | None] | None = None

    def request_context(self) -> RequestContext:
        """Return the context of a request that comes now: a stream has many."""
        identity = RequestIdentity()
        identity.rename(self.name)
        return RequestContext(identity, self.caller, headers=self.headers, server=self.server)


class Calls:
    """Begin and end of the calls of a server."""

    def __init__(
        self, identify: Identify, metrics: ServiceMetrics, server: tuple[str, int | None] | None = None
    ) -> None:
        self._identify = identify
        self._server = server
        self._metrics = metrics

    def begin(self, context: Any, scope: Scope = Scope.INFER) -> Call:
        """Identify the caller of a call that needs a scope; raises RayinferError for one that is refused."""
        headers = _headers(context.invocation_metadata() or ())
        caller = self._identify(headers, client_address(context.peer()))
        if not caller.has_scope(scope):
            raise PermissionDenied(f"The API key lacks the scope {scope.value!r}.")
        return Call(caller, headers.get(REQUEST_ID_HEADER, ""), context.time_remaining(), headers, self._server)

    async def end(self, context: Any, error: Exception) -> None:
        """End a call with the status of an error."""
        message = self.refused(error)
        trailers = (("retry-after", f"{error.retry_after_s:g}"),) if isinstance(error, Unavailable) else ()
        await context.abort(status_code(error), message, trailers)

    def refused(self, error: Exception) -> str:
        """Count or log an error, and return what a client may see of it."""
        if error_kind(error).status == 500:
            logger.error("a call failed", exc_info=error)
        else:
            self._metrics.request_refused(refusal_reason(error))
        return public_error(error).message


def decode_message(message: Any, raw: bytes) -> Any:
    """Decode bytes as a message of this class; raises RequestError. gRPC itself would log a traceback of each."""
    if message is pb.ModelInferRequest:
        if len(raw) > LONG_BODY_BYTES:
            check_message_bounds(raw)
    elif len(raw) > MAX_OTHER_MESSAGE_BYTES:
        raise RequestTooLarge(f"The call's message is larger than {MAX_OTHER_MESSAGE_BYTES} bytes.")
    try:
        return message.FromString(raw)
    except DecodeError:
        raise InvalidParameter("The call's message cannot be decoded.") from None


class GuardedServices(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Interceptor that identifies the callers of services that do not do so themselves, such as reflection."""

    def __init__(self, calls: Calls, services: tuple[str, ...]) -> None:
        self._calls = calls
        self._services = services

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Wrap the handlers of the guarded services, which answer streams with streams."""
        handler = await continuation(handler_call_details)
        service = handler_call_details.method.strip("/").partition("/")[0]
        if handler is None or service not in self._services:
            return handler

        async def guarded(requests: Any, context: Any) -> Any:
            try:
                self._calls.begin(context)
            except Exception as error:
                await self._calls.end(context, error)
            async for response in handler.stream_stream(requests, context):
                yield response

        return grpc.stream_stream_rpc_method_handler(guarded, handler.request_deserializer, handler.response_serializer)


def _headers(metadata: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """Return the headers that are texts; of one that comes twice both values, as HTTP joins them."""
    headers: dict[str, str] = {}
    for name, value in metadata:
        if isinstance(value, str):
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def client_address(peer: str) -> str:
    """Return the address of a peer that gRPC names, as `ipv4:127.0.0.1:5000` or `ipv6:%5B::1%5D:5000`."""
    kind, _, rest = peer.partition(":")
    return unquote(rest).rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else ""
