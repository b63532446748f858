"""Lines of the access log for calls of gRPC."""

import asyncio
import json

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rayinfer.access.access_control import AccessControl
from rayinfer.access.api_key import KeyLimits, Scope
from rayinfer.access.key_file import KeyFile
from rayinfer.errors import QueueFull
from rayinfer.servers.access.access_log import AccessLog
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.kserve.grpc import inference_pb2 as pb
from rayinfer.servers.kserve.grpc.call_access import CallAccess
from rayinfer.servers.kserve.grpc.methods import SERVICE
from rayinfer.servers.kserve.grpc.status_codes import early_end
from rayinfer.servers.kserve.inference import InferenceService
from rayinfer.servers.kserve.repository import ModelRepository
from rayinfer.traces.trace_store import TraceStore
from tests.unit.servers.access.conftest import LocalOwner
from tests.unit.servers.kserve.grpc.test_infer_calls import TINY, text

INFER, STREAM = f"/{SERVICE.full_name}/ModelInfer", f"/{SERVICE.full_name}/ModelStreamInfer"
CANARY = b"zanzibar"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def log(tmp_path):
    return AccessLog(tmp_path / "access.log")


@pytest.fixture
async def key_control(tmp_path):
    return AccessControl("router", LocalOwner(tmp_path / "keys.jsonl"))


@pytest.fixture
async def bearer(tmp_path, key_control):
    limits = KeyLimits(requests_per_minute=2)
    secret = KeyFile(tmp_path / "keys.jsonl").create("alice", scopes=(Scope.INFER,), limits=limits)
    await key_control.synchronize()
    return ("authorization", f"Bearer {secret}")


@pytest.fixture
def access(log, key_control):
    return CallAccess(key_control, log)


@pytest.fixture
def kserve(models, key_control):
    return InferenceService(GenerationService(models, None, TraceStore(), access=key_control), ModelRepository(models))


@pytest.fixture
def lines(server, log, tmp_path):
    """Close the server, so that every call has ended, and return the lines."""

    async def read():
        await server.close(5)
        await asyncio.to_thread(log.close)
        content = (tmp_path / "access.log").read_text()
        assert CANARY.decode() not in content
        assert "Bearer" not in content
        return [json.loads(line) for line in content.splitlines()]

    return read


async def outcome(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code().name


async def test_every_call_has_a_line_also_one_that_is_refused(stub, bearer, lines, generator):
    metadata = (bearer, ("x-request-id", "mine"), ("traceparent", TRACEPARENT))
    await stub.ModelInfer(text(CANARY), metadata=metadata)
    generator.refusal = QueueFull("full")
    assert await outcome(stub.ModelInfer(text(CANARY), metadata=metadata)) == "RESOURCE_EXHAUSTED"
    assert await outcome(stub.ModelInfer(text(CANARY), metadata=(bearer,))) == "RESOURCE_EXHAUSTED"
    assert await outcome(stub.ModelInfer(text(CANARY))) == "UNAUTHENTICATED"
    await stub.ServerLive(pb.ServerLiveRequest())
    await health_pb2_grpc.HealthStub(stub.channel).Check(health_pb2.HealthCheckRequest())
    assert await outcome(stub.channel.unary_unary("/none/None")(b"", metadata=(bearer,))) == "RESOURCE_EXHAUSTED"
    first, *others = await lines()
    expected = {"method": "POST", "path": INFER, "status": 200, "grpc_status": "OK", "client": "127.0.0.1"}
    expected |= {"request_id": "mine", "tenant": "alice", "traceparent": TRACEPARENT}
    assert expected.items() <= first.items()
    assert (first["model"], first["output_tokens"], first["cached_tokens"]) == (TINY, 3, 0)
    assert first["prompt_tokens"] == len(generator.requests[0].prompt_token_ids)
    assert 0 <= first["first_token_s"] <= first["total_s"]
    found = [(each["path"].rpartition("/")[2], each["status"], each["grpc_status"]) for each in others]
    exhausted = (429, "RESOURCE_EXHAUSTED")
    assert found == [
        ("ModelInfer", *exhausted),
        ("ModelInfer", *exhausted),
        ("ModelInfer", 401, "UNAUTHENTICATED"),
        ("ServerLive", 200, "OK"),
        ("Check", 200, "OK"),
        ("None", *exhausted),
    ]
    assert [each["key_id"] == first["key_id"] for each in others] == [True, True, False, False, False, True]


async def test_each_request_of_a_stream_has_a_line_and_so_has_the_stream(stub, bearer, lines):
    answers = [each async for each in stub.ModelStreamInfer(iter([text()] * 3), metadata=(bearer,))]
    assert [each.error_message != "" for each in answers].count(True) == 1  # the key has two requests
    *requests, stream = await lines()
    assert {each["path"] for each in (*requests, stream)} == {STREAM}
    assert sorted((each["status"], each.get("output_tokens")) for each in requests) == [(200, 3), (200, 3), (429, None)]
    assert len({each["request_id"] for each in requests}) == 3
    assert (stream["status"], "output_tokens" in stream) == (200, False)


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
@pytest.mark.parametrize(("way", "status"), [("deadline", (504, "DEADLINE_EXCEEDED")), ("leaves", (499, "CANCELLED"))])
async def test_calls_that_end_early_have_lines(stub, bearer, lines, generator, method, way, status):
    generator.blocks_after = 1
    timeout = 0.5 if way == "deadline" else 60
    call = getattr(stub, method)
    call = (
        call(text(), **{"metadata": (bearer,), "timeout": timeout})
        if method == "ModelInfer"
        else call(iter([text()]), metadata=(bearer,), timeout=timeout)
    )
    async with asyncio.timeout(20):
        await generator.has_blocked.wait()
        if way == "leaves":
            call.cancel()
        await generator.has_aborted.wait()
    found = await lines()
    assert [(each["status"], each["grpc_status"]) for each in found] == [status] * (1 + (method != "ModelInfer"))
    assert (found[0]["output_tokens"], found[0]["tenant"]) == (1, "alice")


def test_a_deadline_that_the_client_sees_first_is_one():
    assert early_end(60.0, 0.9).http_status == 504
    assert early_end(60.0, 30.0).http_status == early_end(None, None).http_status == 499
