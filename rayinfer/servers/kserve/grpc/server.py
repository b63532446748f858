"""The gRPC server: the service's calls, health and reflection, within bounds, on one address."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from rayinfer.access.api_key import Scope
from rayinfer.errors import NotReady, RayinferError
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.caller import Caller
from rayinfer.servers.kserve.grpc import inference_pb2 as pb
from rayinfer.servers.kserve.grpc.calls import Calls, GuardedServices, Identify, decode_message
from rayinfer.servers.kserve.grpc.servicer import InferenceServicer
from rayinfer.servers.kserve.inference import InferenceService
from rayinfer.servers.kserve.repository import ModelRepository
from rayinfer.servers.request_bounds import DEFAULT_MAX_BODY_BYTES

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
OPEN_METHODS = frozenset(("ServerLive", "ServerReady"))  # without a key, as the paths of health over HTTP
OPERATOR_METHODS = frozenset(("RepositoryModelLoad", "RepositoryModelUnload"))  # need the scope `operate`
WATCH_S = 1.0  # how often a watched service's health is read


@dataclass(frozen=True, kw_only=True, slots=True)
class GrpcLimits:
    """The most that clients may have in flight, and their pings."""

    max_message_bytes: int = DEFAULT_MAX_BODY_BYTES
    max_connections: int = 4096
    max_streams_per_connection: int = 1024
    max_calls: int = 8192
    max_metadata_bytes: int = 32 * 2**10
    keepalive_s: int = 60  # without a sign of life until a client is asked for one
    keepalive_timeout_s: int = 20
    min_ping_interval_s: int = 5  # a client that pings more often is disconnected

    def channel_options(self) -> list[tuple[str, int]]:
        """Return gRPC's options."""
        return [
            ("grpc.so_reuseport", 1),  # routers share the port
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_allowed_incoming_connections", self.max_connections),
            ("grpc.max_concurrent_streams", self.max_streams_per_connection),
            ("grpc.max_metadata_size", self.max_metadata_bytes),
            ("grpc.absolute_max_metadata_size", self.max_metadata_bytes),
            ("grpc.keepalive_time_ms", 1000 * self.keepalive_s),
            ("grpc.keepalive_timeout_ms", 1000 * self.keepalive_timeout_s),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", 1000 * self.min_ping_interval_s),
            ("grpc.http2.max_ping_strikes", 2),
        ]


class GrpcServer:
    """Server in the running event loop; its port is open from `start` on."""

    def __init__(
        self,
        service: InferenceService,
        metrics: ServiceMetrics,
        host: str,
        port: int,
        *,
        limits: GrpcLimits = GrpcLimits(),
        identify: Identify = lambda headers, client_address: Caller(),
        credentials: Any = None,
    ) -> None:
        """Bind the address, for TLS with these `grpc.ServerCredentials`; raises RayinferError when it is taken."""
        calls = Calls(identify, metrics, (host, port))
        self._server = grpc.aio.server(
            interceptors=[GuardedServices(calls, (reflection.SERVICE_NAME,))],
            options=limits.channel_options(),
            maximum_concurrent_rpcs=limits.max_calls,
        )
        add_inference_service(self._server, InferenceServicer(service, calls), calls)
        health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(service.repository), self._server)
        names = (SERVICE.full_name, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if credentials is None:
                self.port: int = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, credentials)
        except RuntimeError:
            raise RayinferError(f"cannot listen on {address} for gRPC") from None

    async def start(self) -> None:
        """Begin to answer."""
        await self._server.start()

    async def close(self, grace_s: float) -> None:
        """Accept no new call, let open ones finish within the grace period, and cancel the others."""
        await self._server.stop(grace_s)


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # generated without types
    """`grpc.health.v1`: the readiness of the models, for the server as a whole and for the inference service."""

    def __init__(self, repository: ModelRepository) -> None:
        self._repository = repository

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        """Report the health once."""
        if request.service not in ("", SERVICE.full_name):
            await context.abort(grpc.StatusCode.NOT_FOUND, "There is no such service.")
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


def add_inference_service(server: Any, servicer: InferenceServicer, calls: Calls) -> None:
    """Add every call of the service to a server."""
    handlers = {}
    for method in SERVICE.methods:
        if method.client_streaming:
            handlers[method.name] = grpc.stream_stream_rpc_method_handler(
                _streaming(servicer.model_stream_infer, calls), None, None
            )
            continue
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower()
        answer = servicer.refuse_shared_memory if "shared_memory" in name else getattr(servicer, name)
        # Requests to infer may be long: they are decoded beside the event loop.
        message = None if method.name == "ModelInfer" else GetMessageClass(method.input_type)
        handlers[method.name] = grpc.unary_unary_rpc_method_handler(
            _unary(answer, message, calls, _scope_of(method.name)),
            None,
            GetMessageClass(method.output_type).SerializeToString,
        )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, handlers),))


def _scope_of(method: str) -> Scope | None:
    """Return the scope that a method needs; None for one that needs no caller."""
    if method in OPEN_METHODS:
        return None
    return Scope.OPERATE if method in OPERATOR_METHODS else Scope.INFER


def _unary(answer: Callable[..., Any], message: Any, calls: Calls, scope: Scope | None) -> Callable[..., Any]:
    async def respond(raw: bytes, context: Any) -> Any:
        try:
            call = None if scope is None else calls.begin(context, scope)
            return await answer(raw if message is None else decode_message(message, raw), call)
        except Exception as error:
            await calls.end(context, error)

    return respond


def _streaming(answer: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
    async def respond(requests: Any, context: Any) -> None:
        try:
            await answer(requests, partial(calls.begin, context), context.write)
        except Exception as error:
            await calls.end(context, error)

    return respond
