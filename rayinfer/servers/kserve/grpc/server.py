"""The gRPC server: the service's calls, health and reflection, within bounds, on one address."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from rayinfer.errors import RayinferError
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.kserve.grpc.call_access import OPEN_CALL_ACCESS, CallAccess
from rayinfer.servers.kserve.grpc.calls import Calls
from rayinfer.servers.kserve.grpc.methods import SERVICE, STREAM_METHOD, UNARY_METHODS, InferenceMethods
from rayinfer.servers.kserve.grpc.other_services import HealthServicer, OtherServices
from rayinfer.servers.kserve.inference import InferenceService
from rayinfer.servers.request_bounds import DEFAULT_MAX_BODY_BYTES


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
        access: CallAccess = OPEN_CALL_ACCESS,
        credentials: Any = None,
    ) -> None:
        """Bind the address, for TLS with these `grpc.ServerCredentials`; raises RayinferError when it is taken."""
        calls = Calls(access, metrics, (host, port))
        self._server = grpc.aio.server(
            interceptors=[OtherServices(calls)],
            options=limits.channel_options(),
            maximum_concurrent_rpcs=limits.max_calls,
        )
        add_inference_service(self._server, InferenceMethods(service, calls))
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


def add_inference_service(server: Any, methods: InferenceMethods) -> None:
    """Add every call of the service to a server."""

    async def stream(messages: Any, context: Any) -> None:
        await methods.stream(messages, context, context.write)

    handlers = {STREAM_METHOD: grpc.stream_stream_rpc_method_handler(stream, None, None)}
    for name in UNARY_METHODS:
        encode = GetMessageClass(SERVICE.methods_by_name[name].output_type).SerializeToString
        handlers[name] = grpc.unary_unary_rpc_method_handler(partial(methods.unary, name), None, encode)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, handlers),))
