"""Services beside the inference service: health, and the calls of any others, with keys and the access log."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from rayinfer.access.api_key import Scope
from rayinfer.errors import NotReady, NotSupported, UnknownModel
from rayinfer.servers.kserve.grpc.calls import Call, Calls
from rayinfer.servers.kserve.grpc.methods import SERVICE
from rayinfer.servers.kserve.repository import ModelRepository

WATCH_S = 1.0  # how often a watched service's health is read


class UnknownService(UnknownModel):
    """A service whose health is asked for, and which is not there."""


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # generated without types
    """`grpc.health.v1`: the readiness of the models, for the server as a whole and for the inference service."""

    def __init__(self, repository: ModelRepository) -> None:
        self._repository = repository

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        """Report the health once."""
        if request.service not in ("", SERVICE.full_name):
            raise UnknownService("There is no such service.")
        return health_pb2.HealthCheckResponse(status=self._status(request.service))

    async def Watch(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        """Report the health whenever it changes."""
        latest = None
        while True:
            status = self._status(request.service)
            if status != latest:
                yield health_pb2.HealthCheckResponse(status=status)
                latest = status
            await asyncio.sleep(WATCH_S)

    def _status(self, service: str) -> int:
        statuses = health_pb2.HealthCheckResponse
        if service not in ("", SERVICE.full_name):
            return int(statuses.SERVICE_UNKNOWN)
        try:
            self._repository.check_all_ready()
        except NotReady:
            return int(statuses.NOT_SERVING)
        return int(statuses.SERVING)


class OtherServices(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Interceptor of the calls that do not identify their callers themselves: all but the inference service's.

    Health needs no key; reflection does, and so do methods that are not there.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Wrap the handlers of other services."""
        handler, method = await continuation(handler_call_details), handler_call_details.method
        service = method.strip("/").partition("/")[0]
        if handler is not None and service == SERVICE.full_name:
            return handler
        if handler is None:
            return grpc.stream_stream_rpc_method_handler(self._stream(_refuse, method, Scope.INFER))
        scope = None if service == health.SERVICE_NAME else Scope.INFER
        coders = (handler.request_deserializer, handler.response_serializer)
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(self._unary(handler.unary_unary, method, scope), *coders)
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(self._stream(handler.stream_stream, method, scope), *coders)
        return grpc.unary_stream_rpc_method_handler(self._stream(handler.unary_stream, method, scope), *coders)

    def _unary(self, answer: Any, method: str, scope: Scope | None) -> Any:
        async def respond(request: Any, context: Any) -> Any:
            async def run(call: Call) -> Any:
                return await answer(request, context)

            return await self._calls.run(context, method, scope, run)

        return respond

    def _stream(self, answer: Any, method: str, scope: Scope | None) -> Any:
        async def respond(request: Any, context: Any) -> None:
            async def run(call: Call) -> None:
                async for response in answer(request, context):
                    await context.write(response)

            await self._calls.run(context, method, scope, run)

        return respond


async def _refuse(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    """Refuse a call whatever comes with it."""
    async for _ in requests:
        break
    raise NotSupported("The service has no such method.")
    yield b""  # type: ignore[unreachable]  # makes it a generator, as every handler of streams is here
