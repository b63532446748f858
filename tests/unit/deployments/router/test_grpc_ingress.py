"""Calls that come through Serve's proxies, in Serve's own context."""

import asyncio

import grpc
import pytest
from ray.serve.grpc_util import RayServegRPCContext

from rayinfer.access.access_control import AccessControl
from rayinfer.access.api_key import KeyLimits, Scope
from rayinfer.access.key_file import KeyFile
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.kserve.example_models import example_models
from rayinfer.servers.kserve.grpc import inference_pb2 as pb
from rayinfer.servers.kserve.grpc.call_access import CallAccess
from rayinfer.servers.kserve.grpc.calls import Calls
from rayinfer.servers.kserve.grpc.methods import InferenceMethods
from rayinfer.servers.kserve.inference import InferenceService
from rayinfer.servers.kserve.repository import ModelRepository
from rayinfer.servers.prediction.body_limits import BodyLimits
from rayinfer.servers.request_limits import RequestLimits
from rayinfer_deployments.router.grpc_ingress import MAX_WAITING_RESPONSES, GrpcIngress, StreamRefused
from rayinfer_deployments.router.grpc_servicer import add_inference_service
from tests.unit.servers.access.conftest import LocalOwner

MAX_BYTES = 2000


class ProxyContext:
    """gRPC's context in a proxy, as far as Serve's takes it over."""

    def __init__(self, metadata):
        self.invocation_metadata = lambda: metadata
        self.peer = lambda: "ipv4:10.0.0.1:50"
        self.auth_context = self.code = self.details = self.peer_identities = self.peer_identity_key = lambda: None
        self.trailing_metadata = lambda: (("request_id", "serve's"),)


def context(*metadata):
    return RayServegRPCContext(ProxyContext(metadata))


@pytest.fixture
async def keys(tmp_path):
    return AccessControl("router", LocalOwner(tmp_path / "keys.jsonl"))


@pytest.fixture
async def bearer(tmp_path, keys):
    secret = KeyFile(tmp_path / "keys.jsonl").create(
        "alice", scopes=(Scope.INFER,), limits=KeyLimits(requests_per_minute=100)
    )
    await keys.synchronize()
    return ("authorization", f"Bearer {secret}")


@pytest.fixture
def ingress(keys):
    service = InferenceService(GenerationService({}, None, None), ModelRepository({}, example_models()))
    ingress = GrpcIngress()
    calls = Calls(CallAccess(keys), ServiceMetrics())
    ingress.grpc_methods = InferenceMethods(service, calls, body_limits=BodyLimits(MAX_BYTES, {}, RequestLimits()))
    return ingress


def identity(num_bytes=2):
    message = pb.ModelInferRequest(model_name="identity", raw_input_contents=[bytes(num_bytes)])
    message.inputs.add(name="IN", datatype="UINT8", shape=[num_bytes])
    return message.SerializeToString()


async def of(*messages):
    for message in messages:
        yield message


async def test_calls_have_the_keys_and_limits_of_the_routers_own_port(ingress, bearer):
    found = context(bearer)
    response = await ingress.ModelInfer(identity(), grpc_context=found)
    assert response.raw_output_contents == [b"\0\0"]
    trailers = dict(found.trailing_metadata())
    assert (trailers["request_id"], trailers["x-ratelimit-remaining-requests"]) == ("serve's", "99")
    for metadata, message, status in (
        ((), identity(), grpc.StatusCode.UNAUTHENTICATED),
        ((bearer,), identity(MAX_BYTES), grpc.StatusCode.RESOURCE_EXHAUSTED),
        ((bearer,), b"\xff", grpc.StatusCode.INVALID_ARGUMENT),
    ):
        found = context(*metadata)
        assert (await ingress.ModelInfer(message, grpc_context=found)).SerializeToString() == b""
        assert (found.code(), found.details() != "") == (status, True)
    found = context()
    assert (await ingress.ServerLive(b"", grpc_context=found)).live
    assert found.code() is None


async def test_a_stream_answers_each_message_and_is_refused_with_its_status(ingress, bearer):
    num_messages = 2 * MAX_WAITING_RESPONSES
    answers = [each async for each in ingress.ModelStreamInfer(of(*[identity()] * num_messages), context(bearer))]
    assert len(answers) == num_messages
    decoded = {each.SerializeToString() for each in answers}
    assert len(decoded) == 1
    assert not pb.ModelStreamInferResponse.FromString(decoded.pop()).error_message
    found = context()
    with pytest.raises(StreamRefused):
        await anext(ingress.ModelStreamInfer(of(identity()), found))
    assert found.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_closing_a_stream_ends_what_answers_it(ingress, bearer):
    before = asyncio.all_tasks()
    stream = ingress.ModelStreamInfer(of(*[identity()] * 100), context(bearer))
    await anext(stream)
    assert asyncio.all_tasks() - before
    await stream.aclose()
    async with asyncio.timeout(10):
        await asyncio.wait(asyncio.all_tasks() - before)


def test_the_servicer_function_registers_every_method():
    class Server:
        def add_generic_rpc_handlers(self, handlers):
            self.names = set(handlers[0]._method_handlers)

    server = Server()
    add_inference_service(GrpcIngress(), server)
    service = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert server.names == {f"/{service.full_name}/{method.name}" for method in service.methods}
