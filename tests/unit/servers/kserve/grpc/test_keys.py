"""Keys over gRPC: every method without one, with a wrong one and with one without its scope, and keys' limits."""

import asyncio
from dataclasses import dataclass, replace

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from rayinfer.access.access_control import AccessControl
from rayinfer.access.api_key import KeyLimits, Scope
from rayinfer.access.key_file import KeyFile
from rayinfer.access.usage import day_of
from rayinfer.access.usage_log import UsageLog, usage_log_path
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.kserve.example_models import IdentityModel, example_models
from rayinfer.servers.kserve.grpc import inference_pb2 as pb
from rayinfer.servers.kserve.grpc.call_access import CallAccess
from rayinfer.servers.kserve.grpc.methods import OPEN_METHODS, SERVICE
from rayinfer.servers.kserve.inference import InferenceService
from rayinfer.servers.kserve.repository import ModelRepository
from support.fakes.fake_generator import FakeGenerator
from tests.unit.servers.access.conftest import LocalOwner
from tests.unit.servers.kserve.grpc.test_infer_calls import TINY, text

UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
EXHAUSTED, NOT_FOUND, OK = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.OK
HIDDEN = "secret-model"
OPERATOR_METHODS = {"RepositoryModelLoad", "RepositoryModelUnload"}


@dataclass
class Keys:
    """Keys of a service, and how calls carry them."""

    access: AccessControl
    file: KeyFile

    async def new(self, name, *scopes, **limits):
        """Make a key and return the metadata that carries it."""
        secret = self.file.create(name, scopes=scopes or (Scope.INFER,), limits=KeyLimits(**limits))
        await self.access.synchronize()
        return bearer(secret)


class SlowModel:
    """The identity, which answers when a test says so."""

    def __init__(self):
        self.model, self.runs, self.ends = IdentityModel(name="slow"), asyncio.Event(), asyncio.Event()

    def __getattr__(self, name):
        return getattr(self.model, name)

    async def infer(self, inputs, request):
        """Return the input late."""
        self.runs.set()
        await self.ends.wait()
        return await self.model.infer(inputs, request)


def bearer(secret):
    return (("authorization", f"Bearer {secret}"),)


@pytest.fixture
async def keys(tmp_path):
    file = KeyFile(tmp_path / "api-keys.jsonl")
    keys = Keys(AccessControl("router", LocalOwner(file.path)), file)
    await keys.access.synchronize()
    return keys


@pytest.fixture
def access(keys):
    return CallAccess(keys.access)


@pytest.fixture
def slow():
    return SlowModel()


@pytest.fixture
def kserve(models, keys, slow):
    service = GenerationService(models, None, None, access=keys.access)
    return InferenceService(service, ModelRepository(models, [*example_models(), slow]))


async def error_of(call):
    """Return the status and the details of a call."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details()
    return OK, ""


async def statuses(stub, metadata, is_refused=False):
    """Call every method of the service and of reflection, and return their statuses.

    Nothing is written to streams that are refused: a message on its way then makes the client's own status INTERNAL.
    """
    found: dict[str, grpc.StatusCode] = {}
    asked = [] if is_refused else [[reflection_pb2.ServerReflectionRequest(list_services="")]]
    for method in SERVICE.methods:
        message, call = GetMessageClass(method.input_type)(), getattr(stub, method.name)
        if method.client_streaming:
            called = call(*([] if is_refused else [iter([message])]), metadata=metadata).read()
        else:
            called = call(message, metadata=metadata)
        found[method.name], _ = await error_of(called)
    reflection = reflection_pb2_grpc.ServerReflectionStub(stub.channel)
    found["reflection"], _ = await error_of(reflection.ServerReflectionInfo(*asked, metadata=metadata).read())
    return found


async def test_every_method_but_health_needs_a_key(stub, keys):
    anonymous = await statuses(stub, (), is_refused=True)
    stranger = await statuses(stub, bearer("ri-wrong"), is_refused=True)
    assert len(anonymous) > 20
    closed = [name for name in anonymous if name not in OPEN_METHODS]
    assert {anonymous[name] for name in closed} == {UNAUTHENTICATED}
    # An address has 20 wrong keys a minute.
    assert [stranger[name] for name in closed] == [UNAUTHENTICATED] * min(20, len(closed)) + [EXHAUSTED] * (
        len(closed) - 20
    )
    assert {anonymous[name] for name in OPEN_METHODS} == {stranger[name] for name in OPEN_METHODS} == {OK}
    health = health_pb2_grpc.HealthStub(stub.channel)
    assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING


async def test_every_method_needs_its_scope(stub, keys):
    found = {scope: await statuses(stub, await keys.new(scope.value, scope)) for scope in Scope}
    for name in found[Scope.INFER]:
        denied = {scope for scope in Scope if found[scope][name] is DENIED}
        if name in OPEN_METHODS:
            assert denied == set(), name
        else:
            assert denied == set(Scope) - {Scope.OPERATE if name in OPERATOR_METHODS else Scope.INFER}, name


async def test_requests_a_minute_count_every_call_and_every_request_of_a_stream(stub, keys, generator):
    key = await keys.new("alice", requests_per_minute=2)
    assert (await error_of(stub.ModelInfer(text(), metadata=key)))[0] is OK
    assert (await error_of(stub.ServerMetadata(pb.ServerMetadataRequest(), metadata=key)))[0] is OK
    for call in (stub.ModelInfer(text(), metadata=key), stub.ModelStreamInfer(iter([text()]), metadata=key).read()):
        assert (await error_of(call))[0] is EXHAUSTED
    key = await keys.new("bob", requests_per_minute=2)
    answers = [each async for each in stub.ModelStreamInfer(iter([text()] * 5), metadata=key)]
    refused = [each.error_message for each in answers if each.error_message]
    assert (len(refused), len(generator.requests)) == (3, 1 + 2)
    assert all("requests" in message for message in refused)


async def metadata_behind(call):
    """Return the trailing metadata of a call, whichever way it ends."""
    code, _ = await error_of(call.read() if hasattr(call, "read") else call)
    return code, dict(await call.trailing_metadata())


async def test_calls_carry_what_is_left_of_limits_and_when_to_come_again(stub, keys):
    key = await keys.new("alice", requests_per_minute=2, tokens_per_minute=1000)
    named = (*key, ("x-request-id", "mine"))
    code, trailers = await metadata_behind(stub.ModelInfer(text(), metadata=named))
    assert (code, trailers["x-ratelimit-limit-requests"], trailers["x-ratelimit-remaining-requests"]) == (OK, "2", "1")
    assert (trailers["x-ratelimit-limit-tokens"], trailers["x-request-id"]) == ("1000", "mine")
    stream = stub.ModelStreamInfer(iter([text()]), metadata=key)
    assert [each async for each in stream]
    assert dict(await stream.trailing_metadata())["x-ratelimit-remaining-requests"] == "0"
    for call in (stub.ModelInfer(text(), metadata=key), stub.ModelStreamInfer(iter([text()]), metadata=key)):
        code, trailers = await metadata_behind(call)
        assert (code, trailers["x-ratelimit-remaining-requests"]) == (EXHAUSTED, "0")
        assert 25 <= int(trailers["retry-after"]) <= 30
        assert trailers["x-ratelimit-reset-requests"].endswith("s")
    code, trailers = await metadata_behind(stub.ModelInfer(text()))
    assert code is UNAUTHENTICATED
    assert not [name for name in trailers if name.startswith("x-ratelimit")]


async def test_a_stream_of_a_revoked_key_takes_no_more_requests(stub, keys, generator):
    key = await keys.new("alice")
    stream = stub.ModelStreamInfer(metadata=key)
    await stream.write(text(stream=False))
    assert not (await stream.read()).error_message
    keys.file.revoke("alice")
    await keys.access.synchronize()
    await stream.write(text(stream=False))
    await stream.done_writing()
    assert (await stream.read()).error_message == "The API key is not valid."
    assert len(generator.requests) == 1


async def test_a_keys_places_are_held_until_its_answers_end(stub, keys, generator):
    key = await keys.new("alice", concurrent_requests=1)
    generator.blocks_after = 1
    stream = stub.ModelStreamInfer(iter([text(stream=True)]), metadata=key)
    await generator.has_blocked.wait()
    code, _ = await error_of(stub.ModelInfer(text(), metadata=key, timeout=10))
    assert code is EXHAUSTED
    [answer] = [each async for each in stub.ModelStreamInfer(iter([text()]), metadata=key, timeout=10)]
    assert answer.error_message
    generator.release.set()
    assert "".join([each.error_message async for each in stream]) == ""
    generator.blocks_after = None
    assert (await error_of(stub.ModelInfer(text(), metadata=key)))[0] is OK


async def test_a_model_that_a_key_may_not_use_is_the_same_as_one_that_does_not_exist(stub, keys, models):
    hidden = FakeGenerator()
    models[HIDDEN] = replace(models[TINY], name=HIDDEN, generator=hidden)
    key = await keys.new("alice", Scope.INFER, Scope.OPERATE, models=(TINY, "simple"))

    async def outcome(name):
        found = {}
        for method in SERVICE.methods:
            message = GetMessageClass(method.input_type)()
            field = next((each for each in ("model_name", "name") if hasattr(message, each)), None)
            if field is None or "SharedMemory" in method.name:
                continue
            setattr(message, field, name)
            call = getattr(stub, method.name)
            if method.client_streaming:
                found[method.name] = (await call(iter([message]), metadata=key).read()).error_message
            else:
                found[method.name] = await error_of(call(message, metadata=key))
        return found

    secret = await outcome(HIDDEN)
    assert secret == await outcome("absent-model")
    assert "secret" not in str(secret)
    assert secret["ModelReady"][0] is OK
    lookups = {"ModelMetadata", "ModelConfig", "ModelStatistics", "ModelInfer", "TraceSetting", *OPERATOR_METHODS}
    assert {secret[name][0] for name in lookups} == {NOT_FOUND}
    assert hidden.requests == []
    index = (await stub.RepositoryIndex(pb.RepositoryIndexRequest(), metadata=key)).models
    assert {entry.name for entry in index} == {TINY, "simple"}
    counted = (await stub.ModelStatistics(pb.ModelStatisticsRequest(), metadata=key)).model_stats
    assert {entry.name for entry in counted} == {TINY, "simple"}


async def test_usage_of_calls_and_streams_is_counted(stub, keys, generator):
    key = await keys.new("alice")
    await stub.ModelInfer(text(), metadata=key)
    assert [each async for each in stub.ModelStreamInfer(iter([text(stream=True)] * 2), metadata=key)]
    await keys.access.synchronize()
    [row] = (await keys.access.usage(day_of(), None)).rows
    assert (row.key.model, row.usage.requests, row.usage.output_tokens) == (TINY, 3, 9)
    assert {request.tenant for request in generator.requests} == {"alice"}


async def test_a_key_is_used_by_any_call_that_carries_it(stub, keys):
    alice, _ = await keys.new("alice"), await keys.new("bob")
    await stub.ServerMetadata(pb.ServerMetadataRequest(), metadata=alice)
    await keys.access.synchronize()
    log = UsageLog(usage_log_path(keys.file.path))
    assert log.last_used_s().keys() == {key.key_id for key in keys.file.read() if key.name == "alice"}
    log.close()


def tensor(model, **parameters):
    contents = pb.InferTensorContents(int_contents=[7])
    return pb.ModelInferRequest(
        model_name=model,
        parameters={name: pb.InferParameter(int64_param=value) for name, value in parameters.items()},
        inputs=[pb.ModelInferRequest.InferInputTensor(name="IN", datatype="INT32", shape=[1], contents=contents)],
    )


async def test_tensor_models_take_a_keys_places_and_are_in_its_usage(stub, keys, slow):
    key = await keys.new("alice", concurrent_requests=1, most_urgent=0, requests_per_minute=6)
    first = stub.ModelInfer(tensor("slow"), metadata=key)
    await slow.runs.wait()
    for call in (stub.ModelInfer(tensor("identity"), metadata=key), stub.ModelInfer(text(), metadata=key)):
        assert (await error_of(call))[0] is EXHAUSTED
    slow.ends.set()
    assert (await error_of(first))[0] is OK
    assert (await error_of(stub.ModelInfer(tensor("identity"), metadata=key)))[0] is OK
    assert (await error_of(stub.ModelInfer(tensor("identity", priority=-1), metadata=key)))[0] is DENIED
    await keys.access.synchronize()
    rows = (await keys.access.usage(day_of(), None)).rows
    assert {row.key.model: tuple(row.usage)[:4] for row in rows} == {"slow": (1, 0, 0, 0), "identity": (1, 0, 0, 0)}
    assert (await error_of(stub.ModelInfer(tensor("identity"), metadata=key)))[0] is OK
    assert (await error_of(stub.ModelInfer(tensor("identity"), metadata=key)))[0] is EXHAUSTED
