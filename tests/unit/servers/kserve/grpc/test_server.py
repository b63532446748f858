"""Calls about the server and its models, health, reflection, callers and limits."""

import asyncio

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from rayinfer.errors import InvalidParameter, RayinferError
from rayinfer.servers.caller import ANYONE, Caller, caller_of_headers
from rayinfer.servers.kserve.grpc import inference_pb2 as pb
from rayinfer.servers.kserve.grpc.call_access import CallAccess
from rayinfer.servers.kserve.grpc.calls import client_address
from rayinfer.servers.kserve.grpc.methods import OPEN_METHODS, SERVICE
from rayinfer.servers.kserve.grpc.server import GrpcServer

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def status_of(call):
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_the_server_and_its_models_are_described(stub, generator):
    assert (await stub.ServerLive(pb.ServerLiveRequest())).live
    assert (await stub.ServerReady(pb.ServerReadyRequest())).ready
    assert (await stub.ServerMetadata(pb.ServerMetadataRequest())).name == "rayinfer"
    metadata = await stub.ModelMetadata(pb.ModelMetadataRequest(name="org/tiny"))
    assert [tensor.name for tensor in metadata.outputs] == ["text_output"]
    config = (await stub.ModelConfig(pb.ModelConfigRequest(name="org/tiny"))).config
    assert config.model_transaction_policy.decoupled
    assert config.input[0].data_type == pb.TYPE_STRING
    assert config.parameters["max_model_len"].string_value == "256"
    generator.not_ready = "starting"
    assert not (await stub.ServerReady(pb.ServerReadyRequest())).ready
    assert not (await stub.ModelReady(pb.ModelReadyRequest(name="org/tiny"))).ready
    assert not (await stub.ModelReady(pb.ModelReadyRequest(name="none"))).ready
    assert (await stub.ModelReady(pb.ModelReadyRequest(name="simple"))).ready


async def test_the_repository_and_its_statistics(stub):
    await stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="simple"))
    index = (await stub.RepositoryIndex(pb.RepositoryIndexRequest())).models
    assert {entry.name: entry.state for entry in index} == {
        "org/tiny": "READY",
        "simple": "UNAVAILABLE",
        "identity": "READY",
    }
    await stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="simple"))
    message = pb.ModelInferRequest(model_name="identity")
    message.inputs.add(name="IN", datatype="INT32", shape=[1]).contents.int_contents.append(1)
    await stub.ModelInfer(message)
    [statistics] = (await stub.ModelStatistics(pb.ModelStatisticsRequest(name="identity"))).model_stats
    assert (statistics.inference_count, statistics.execution_count) == (1, 1)
    assert statistics.inference_stats.success.ns > 0
    assert len((await stub.ModelStatistics(pb.ModelStatisticsRequest())).model_stats) == 3


async def test_settings_can_be_read_and_not_written(stub):
    trace = await stub.TraceSetting(pb.TraceSettingRequest())
    assert list(trace.settings["trace_level"].value) == ["OFF"]
    assert (await stub.LogSettings(pb.LogSettingsRequest())).settings["log_info"].bool_param
    change = pb.LogSettingsRequest()
    change.settings["log_info"].bool_param = False
    assert await status_of(stub.LogSettings(change)) == grpc.StatusCode.UNIMPLEMENTED


async def test_shared_memory_is_refused(stub):
    names = [method.name for method in SERVICE.methods if "SharedMemory" in method.name]
    assert len(names) == 6
    for name in names:
        message = GetMessageClass(SERVICE.methods_by_name[name].input_type)()
        assert await status_of(getattr(stub, name)(message)) == grpc.StatusCode.UNIMPLEMENTED


async def test_health_follows_the_models(stub, generator):
    health = health_pb2_grpc.HealthStub(stub.channel)
    for service in ("", SERVICE.full_name):
        assert (await health.Check(health_pb2.HealthCheckRequest(service=service))).status == SERVING
    assert await status_of(health.Check(health_pb2.HealthCheckRequest(service="x"))) == grpc.StatusCode.NOT_FOUND
    watched = health.Watch(health_pb2.HealthCheckRequest())
    assert (await watched.read()).status == SERVING
    generator.not_ready = "starting"
    async with asyncio.timeout(20):
        assert (await watched.read()).status == NOT_SERVING
    watched.cancel()


async def test_reflection_lists_the_services(stub):
    reflection = reflection_pb2_grpc.ServerReflectionStub(stub.channel)
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    [answer] = [each async for each in reflection.ServerReflectionInfo(iter([asked]))]
    assert SERVICE.full_name in {each.name for each in answer.list_services_response.service}


async def test_methods_that_are_not_there_are_not_implemented(stub):
    for kind in ("unary_unary", "stream_stream"):
        call = getattr(stub.channel, kind)(f"/{SERVICE.full_name}/None")
        call = call(b"") if kind == "unary_unary" else call(iter([b""])).read()
        assert await status_of(call) == grpc.StatusCode.UNIMPLEMENTED


class BadKey(InvalidParameter):
    """A caller without a key."""


class OneKey(CallAccess):
    """Access of the callers with one key."""

    def authenticate(self, headers, client_address):
        assert client_address == "127.0.0.1"
        if headers.get("authorization") != "Bearer key":
            raise BadKey("This key is not known.")
        return Caller("tenant", "salt")


class TestWithKeys:
    @pytest.fixture
    def access(self):
        return OneKey()

    async def test_every_method_but_health_needs_a_caller(self, stub):
        for method in SERVICE.methods:
            message = GetMessageClass(method.input_type)()
            if method.client_streaming:
                found = await status_of(stub.ModelStreamInfer().read())  # refused before there is a message
            else:
                found = await status_of(getattr(stub, method.name)(message))
            is_open = method.name in OPEN_METHODS
            assert found == (grpc.StatusCode.OK if is_open else grpc.StatusCode.INVALID_ARGUMENT), method.name
        health = health_pb2_grpc.HealthStub(stub.channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(stub.channel)
        call = reflection.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        assert await status_of(call.read()) == grpc.StatusCode.INVALID_ARGUMENT

    async def test_the_caller_becomes_the_requests(self, stub, generator):
        message = pb.ModelInferRequest(model_name="org/tiny")
        message.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"Say")
        await stub.ModelInfer(message, metadata=(("authorization", "Bearer key"),))
        assert (generator.requests[0].tenant, generator.requests[0].cache_salt) == ("tenant", "salt")


def test_a_tenant_that_is_named_twice_is_refused():
    assert caller_of_headers({"x-tenant-id": "a"}, ANYONE) == Caller("a")
    with pytest.raises(InvalidParameter):
        caller_of_headers({"x-tenant-id": "a, b"}, ANYONE)


@pytest.mark.parametrize(
    ("peer", "address"),
    [("ipv4:10.0.0.1:50", "10.0.0.1"), ("ipv6:%5B::1%5D:50", "::1"), ("ipv6:[::1]:50", "::1"), ("unix:/a", "")],
)
def test_addresses_of_peers(peer, address):
    assert client_address(peer) == address


async def test_metadata_beyond_its_bound_is_refused(stub):
    metadata = (("x-padding", "x" * 40_000),)
    assert await status_of(stub.ServerLive(pb.ServerLiveRequest(), metadata=metadata)) != grpc.StatusCode.OK
    assert await status_of(stub.ServerLive(pb.ServerLiveRequest())) == grpc.StatusCode.OK


async def test_connections_beyond_their_bound_are_refused(server):
    channels = []
    statuses = []
    for number in range(5):
        # Channels with other options share no connection.
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", [("grpc.primary_user_agent", str(number))])
        channels.append(channel)
        call = channel.unary_unary(f"/{SERVICE.full_name}/ServerLive")
        statuses.append(await status_of(call(b"", timeout=5)))
    for channel in channels:
        await channel.close()
    assert statuses[:3] == [grpc.StatusCode.OK] * 3
    assert grpc.StatusCode.OK not in statuses[3:]


async def test_an_address_that_is_taken_is_named(kserve, metrics):
    with pytest.raises(RayinferError, match=r"192\.0\.2\.1:5000"):
        GrpcServer(kserve, metrics, "192.0.2.1", 5000)
