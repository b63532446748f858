from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.kserve.grpc.call_access import CallAccess
from rayinfer.servers.kserve.grpc.methods import SERVICE
from rayinfer.servers.kserve.grpc.server import GrpcLimits, GrpcServer
from rayinfer.servers.kserve.inference import InferenceService

LIMITS = GrpcLimits(max_message_bytes=200_000, max_connections=3, max_metadata_bytes=16 * 1024)


class Stub:
    """Methods of the service by their names."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel

    def __getattr__(self, name: str) -> Any:
        method = SERVICE.methods_by_name[name]
        kind = "stream_stream" if method.client_streaming else "unary_unary"
        return getattr(self.channel, kind)(
            f"/{SERVICE.full_name}/{name}",
            GetMessageClass(method.input_type).SerializeToString,
            GetMessageClass(method.output_type).FromString,
        )


@pytest.fixture
def access() -> CallAccess:
    return CallAccess()


@pytest.fixture
async def server(kserve: InferenceService, metrics: ServiceMetrics, access: CallAccess) -> AsyncIterator[GrpcServer]:
    """A server of the fake language model and the example models, on a port of its own."""
    server = GrpcServer(kserve, metrics, "127.0.0.1", 0, limits=LIMITS, access=access)
    await server.start()
    yield server
    await server.close(0)


@pytest.fixture
async def stub(server: GrpcServer) -> AsyncIterator[Stub]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield Stub(channel)
