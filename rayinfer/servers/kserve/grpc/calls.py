"""Calls of gRPC: their callers and deadlines, the way of errors to their statuses, and their access log."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError

from rayinfer.access.api_key import Scope
from rayinfer.errors import InvalidParameter, PermissionDenied, RequestTooLarge
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.access.request_record import RequestRecord
from rayinfer.servers.caller import ANYONE, Caller, RequestContext
from rayinfer.servers.error_responses import error_kind, public_error, refusal_reason, retry_after
from rayinfer.servers.json_body import LONG_BODY_BYTES
from rayinfer.servers.kserve.grpc import inference_pb2 as pb
from rayinfer.servers.kserve.grpc.call_access import CallAccess
from rayinfer.servers.kserve.grpc.message_bounds import check_message_bounds
from rayinfer.servers.kserve.grpc.status_codes import CallEnd, early_end, end_of, status_code
from rayinfer.servers.request_boundary import RequestIdentity
from rayinfer.servers.request_bounds import REQUEST_ID_HEADER

MAX_OTHER_MESSAGE_BYTES = 2**14  # of all calls but those that infer: they have names and few settings
HTTP_METHOD = "POST"  # of every call of gRPC

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")


@dataclass(slots=True)
class Call:
    """Identity, caller and deadline of one call, or of one request of a stream."""

    context: Any = field(repr=False)  # gRPC's
    method: str  # its full name
    headers: Mapping[str, str] = field(repr=False)
    client_address: str
    server: tuple[str, int | None] | None
    deadline_s: float | None
    identity: RequestIdentity
    caller: Caller = ANYONE
    record: RequestRecord | None = None  # where an access log is kept

    def request_context(self) -> RequestContext:
        """Return the context of the request."""
        return RequestContext(self.identity, self.caller, self.record, headers=self.headers, server=self.server)


class Calls:
    """Begin and end of the calls of a server."""

    def __init__(
        self, access: CallAccess, metrics: ServiceMetrics, server: tuple[str, int | None] | None = None
    ) -> None:
        self._access = access
        self._server = server
        self._metrics = metrics

    async def run(
        self, context: Any, method: str, scope: Scope | None, answer: Callable[[Call], Awaitable[Answer]]
    ) -> Answer | None:
        """Answer a call whose caller needs a scope, or end it with the status of its error."""
        call = self._open(context, method)
        try:
            with self.logged(call):
                if scope is not None:
                    self.admit(call, scope)
                answered = await answer(call)
        except Exception as error:
            message, trailers = self.refused(error), self._trailers(call, retry_after(error))
            await context.abort(status_code(error), message, trailers)
            return None
        context.set_trailing_metadata(self._trailers(call))
        return answered

    def request_of(self, stream: Call) -> Call:
        """Return the next request of a stream, whose caller is the stream's."""
        request = self._open(stream.context, stream.method)
        request.caller = stream.caller
        return request

    def admit(self, call: Call, scope: Scope = Scope.INFER) -> None:
        """Identify the caller of a call that needs a scope, and count the call; raises RayinferError."""
        call.caller = self._access.authenticate(call.headers, call.client_address)
        if not call.caller.has_scope(scope):
            raise PermissionDenied(f"The API key lacks the scope {scope.value!r}.")
        self._access.admit(call.caller)

    @contextmanager
    def logged(self, call: Call) -> Iterator[None]:
        """Write the line of a call, or of a request of a stream, when it ends."""
        end = CallEnd(200, grpc.StatusCode.OK)
        try:
            yield
        except (asyncio.CancelledError, grpc.aio.BaseError):  # of writes to a client that has left
            end = early_end(call.deadline_s, call.context.time_remaining())
            raise
        except Exception as error:
            end = end_of(error)
            raise
        finally:
            if call.record is not None and self._access.log is not None:
                fields = call.record.as_json(call.identity.name, call.caller, end.http_status)
                self._access.log.write(fields | {"grpc_status": end.code.name})

    def refused(self, error: Exception) -> str:
        """Count or log an error, and return what a client may see of it."""
        if error_kind(error).status == 500:
            logger.error("a call failed", exc_info=error)
        else:
            self._metrics.request_refused(refusal_reason(error))
        return public_error(error).message

    def _open(self, context: Any, method: str) -> Call:
        headers, identity = _headers(context.invocation_metadata() or ()), RequestIdentity()
        identity.rename(headers.get(REQUEST_ID_HEADER, ""))
        address = client_address(context.peer())
        record = None
        if self._access.log is not None:
            traceparent = headers.get("traceparent", "")
            record = RequestRecord(HTTP_METHOD, method, address, identity.received_s, traceparent)
        return Call(context, method, headers, address, self._server, context.time_remaining(), identity, record=record)

    def _trailers(self, call: Call, wait: str | None = None) -> tuple[tuple[str, str], ...]:
        """Return the metadata behind a call: those headers of an HTTP response that its client may need."""
        trailers = ((REQUEST_ID_HEADER, call.identity.name), *self._access.limits_left(call.caller))
        return trailers if wait is None else (*trailers, ("retry-after", wait))


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
