"""Methods of the ingress deployment that Serve's proxies call for gRPC: one by the name of each call."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any

import grpc
from ray.serve.grpc_util import RayServegRPCContext

from rayinfer.servers.kserve.grpc.methods import STREAM_METHOD, UNARY_METHODS, InferenceMethods

MAX_WAITING_RESPONSES = 16  # of a stream, until Serve takes the next one


class GrpcIngress:
    """Ingress deployment whose `grpc_methods` answer Serve's gRPC calls."""

    grpc_methods: InferenceMethods


def _unary_method(name: str) -> Callable[..., Any]:
    async def call(self: GrpcIngress, request: bytes, grpc_context: RayServegRPCContext) -> Any:
        response = await self.grpc_methods.unary(name, request, _CallContext(grpc_context))
        return _Encoded(b"") if response is None else response  # Serve sends none with an error

    return call


async def _stream_method(
    self: GrpcIngress, requests: AsyncIterator[bytes], grpc_context: RayServegRPCContext
) -> AsyncGenerator["_Encoded", None]:
    responses: asyncio.Queue[bytes | None] = asyncio.Queue()
    has_room = asyncio.Semaphore(MAX_WAITING_RESPONSES)

    async def write(response: bytes) -> None:
        await has_room.acquire()
        responses.put_nowait(response)

    answering = asyncio.create_task(self.grpc_methods.stream(requests, _CallContext(grpc_context), write))
    answering.add_done_callback(lambda _: responses.put_nowait(None))
    try:
        while (response := await responses.get()) is not None:
            yield _Encoded(response)
            has_room.release()
        await answering
    finally:
        answering.cancel()
    if grpc_context.code() is not None:
        raise StreamRefused(grpc_context.details())  # whose status is in the context


for _name in UNARY_METHODS:
    setattr(GrpcIngress, _name, _unary_method(_name))
setattr(GrpcIngress, STREAM_METHOD, _stream_method)


class StreamRefused(Exception):
    """A stream that ends with an error."""


class _Encoded:
    """An encoded message, in the place of one that Serve encodes."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        """Return the message."""
        return self._raw


class _CallContext:
    """Serve's context of a call, in the form of gRPC's; Serve passes no deadline on, but cancels calls then."""

    def __init__(self, context: RayServegRPCContext) -> None:
        self._context = context

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        """Return the client's metadata."""
        return tuple(self._context.invocation_metadata())

    def peer(self) -> str:
        """Return the client's address, as Serve's proxy has it."""
        return str(self._context.peer())

    def time_remaining(self) -> None:
        """Return that no deadline is known."""

    def set_trailing_metadata(self, metadata: Sequence[tuple[str, str]]) -> None:
        """Set the metadata behind the call."""
        self._context.set_trailing_metadata(list(metadata))

    async def abort(self, code: grpc.StatusCode, details: str, metadata: Sequence[tuple[str, str]]) -> None:
        """Set the status that the call has when its method returns."""
        self._context.set_code(code)
        self._context.set_details(details)
        self.set_trailing_metadata(metadata)
