"""Calls of a model that is loading, beside two that answer."""

from dataclasses import replace

import grpc
import pytest

from rayinfer.servers.kserve.grpc import inference_pb2 as pb
from rayinfer.servers.served_model import ServedModel
from support.fakes.fake_generator import FakeGenerator

STATES = {"first": "", "second": "", "third": "it is loading"}


@pytest.fixture
def models(models: dict[str, ServedModel]) -> dict[str, ServedModel]:
    """Three models, of which the third is loading."""
    return {
        name: replace(models["org/tiny"], name=name, generator=FakeGenerator(not_ready=reason))
        for name, reason in STATES.items()
    }


def message(name):
    message = pb.ModelInferRequest(model_name=name)
    tensor = message.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(b"Say")
    return message


@pytest.mark.parametrize("name", STATES)
async def test_a_model_that_is_loading_is_unavailable_for_itself_only(stub, name):
    assert (await stub.ModelReady(pb.ModelReadyRequest(name=name))).ready == (not STATES[name])
    call = stub.ModelInfer(message(name))
    if not STATES[name]:
        assert (await call).model_name == name
        assert "retry-after" not in dict(await call.trailing_metadata())
        return
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert STATES[name] in caught.value.details()
    assert int(dict(caught.value.trailing_metadata())["retry-after"]) > 0


async def test_requests_of_a_stream_are_refused_for_that_model_only(stub):
    errors = {name: [] for name in STATES}
    async for answer in stub.ModelStreamInfer(iter([message(name) for name in ("third", *STATES)])):
        errors[answer.infer_response.model_name].append(answer.error_message)
    assert len(errors["third"]) == 2
    assert all(STATES["third"] in error for error in errors["third"])
    assert errors["first"]
    assert errors["second"]
    assert not any(errors["first"] + errors["second"])
