"""ModelInfer and ModelStreamInfer over a fake language model and the example models."""

import asyncio

import grpc
import numpy as np
import pytest

from rayinfer.errors import NotReady, QueueFull
from rayinfer.servers.kserve.grpc import inference_pb2 as pb
from rayinfer.servers.kserve.grpc.call_access import CallAccess
from rayinfer.servers.kserve.grpc.calls import Call, Calls
from rayinfer.servers.kserve.grpc.infer_stream import InferStream
from rayinfer.servers.kserve.grpc.servicer import InferenceServicer
from rayinfer.servers.kserve.tensors.datatypes import DATATYPES
from rayinfer.servers.request_boundary import RequestIdentity

TINY = "org/tiny"


def request(model="simple", **fields):
    message = pb.ModelInferRequest(model_name=model, **fields)
    if model == "simple":
        for name in ("INPUT0", "INPUT1"):
            message.inputs.add(name=name, datatype="INT32", shape=[1, 16]).contents.int_contents.extend(range(16))
    return message


def identity(datatype, shape, raw=None, **contents):
    message = pb.ModelInferRequest(model_name="identity")
    tensor = message.inputs.add(name="IN", datatype=datatype, shape=shape)
    for field, values in contents.items():
        getattr(tensor.contents, field).extend(values)
    if raw is not None:
        message.raw_input_contents.append(raw)
    return message


def text(prompt=b"Say", raw=True, **parameters):
    message = pb.ModelInferRequest(model_name=TINY, id="t")
    tensor = message.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    if raw:
        message.raw_input_contents.append(len(prompt).to_bytes(4, "little") + prompt)
    else:
        tensor.contents.bytes_contents.append(prompt)
    for name, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}[type(value)]
        message.parameters[name].MergeFrom(pb.InferParameter(**{kind: value}))
    return message


async def test_the_simple_model_adds_and_subtracts(stub):
    response = await stub.ModelInfer(request(id="a", model_version="1"))
    assert (response.id, response.model_name, response.model_version) == ("a", "simple", "1")
    assert [output.name for output in response.outputs] == ["OUTPUT0", "OUTPUT1"]
    assert list(response.outputs[0].contents.int_contents) == [2 * each for each in range(16)]
    assert not response.raw_output_contents


@pytest.mark.parametrize("datatype", DATATYPES.values(), ids=lambda each: each.name)
async def test_every_datatype_comes_back_raw_and_typed(stub, datatype):
    if datatype.name == "BYTES":
        values, raw = [b"a", b"\xff\0"], b"\1\0\0\0a\2\0\0\0\xff\0"
    else:
        values = [True, False] if datatype.name == "BOOL" else [1, 3]
        raw = np.array(values, datatype.numpy).tobytes()
    response = await stub.ModelInfer(identity(datatype.name, [2, 1], raw=raw))
    assert (response.outputs[0].datatype, list(response.outputs[0].shape)) == (datatype.name, [2, 1])
    assert list(response.raw_output_contents) == [raw]
    assert not response.outputs[0].HasField("contents")
    if datatype.contents:
        response = await stub.ModelInfer(identity(datatype.name, [2, 1], **{datatype.contents: values}))
        assert list(getattr(response.outputs[0].contents, datatype.contents)) == values
        assert not response.raw_output_contents


async def test_infer_on_a_language_model_returns_its_text(stub, generator):
    response = await stub.ModelInfer(text(raw=False, max_tokens=5, temperature=0.5, priority=-2, timeout=3_000_000))
    assert list(response.outputs[0].contents.bytes_contents) == [b"Hello there!"]
    sent = generator.requests[0]
    assert (sent.priority, sent.sampling_params.max_tokens, sent.sampling_params.temperature) == (-2, 5, 0.5)
    assert 2 < sent.timeout_s <= 3


async def test_a_calls_deadline_is_its_requests(stub, generator):
    await stub.ModelInfer(text(), timeout=20)
    assert 10 < generator.requests[0].timeout_s < 21  # which gRPC rounds


async def received(call):
    return [response async for response in call]


async def stream(stub, *messages):
    call = stub.ModelStreamInfer(iter(messages))
    return await received(call)


async def test_a_stream_has_a_response_for_each_piece_of_text(stub):
    responses = await stream(stub, text(triton_enable_empty_final_response=True))
    assert [each.error_message for each in responses] == [""] * 4
    inner = [each.infer_response for each in responses]
    assert [bytes(each.raw_output_contents[0])[4:] for each in inner[:-1]] == [b"Hello", b" there", b"!"]
    assert [each.parameters["triton_final_response"].bool_param for each in inner] == [False, False, False, True]
    assert {each.id for each in inner} == {"t"}
    assert not inner[-1].outputs


async def test_a_stream_ends_without_an_empty_response_unless_asked(stub):
    responses = await stream(stub, text(raw=False), text(stream=False))
    texts = [each.infer_response.outputs[0].contents.bytes_contents for each in responses]
    typed = [bytes(piece) for pieces in texts for piece in pieces]
    raw = [
        bytes(each.infer_response.raw_output_contents[0])[4:]
        for each in responses
        if each.infer_response.raw_output_contents
    ]
    assert typed == [b"Hello", b" there", b"!"]
    assert raw == [b"Hello there!"]


async def test_a_stream_answers_tensors_and_goes_on_after_errors(stub):
    responses = await stream(stub, request(id="1"), request("none", id="2"), request(id="3"))
    by_id = {each.infer_response.id: each for each in responses}
    assert "does not exist" in by_id["2"].error_message
    for good in ("1", "3"):
        assert by_id[good].error_message == ""
        assert by_id[good].infer_response.parameters["triton_final_response"].bool_param


class OpenContext:
    """Context of a call without metadata and deadline."""

    def invocation_metadata(self):
        return ()

    def peer(self):
        return ""

    def time_remaining(self):
        return None


async def test_a_client_that_reads_nothing_for_long_ends_its_stream(kserve, metrics, generator):
    calls = Calls(CallAccess(), metrics)

    async def write(response):
        await asyncio.Event().wait()

    async def messages():
        yield text().SerializeToString()

    servicer = InferenceServicer(kserve, calls)
    call = Call(OpenContext(), "/", {}, "", None, None, RequestIdentity())
    stream = InferStream(kserve, servicer, calls, call, write, stalled_s=0.05)
    answering = asyncio.create_task(stream.answer_all(messages()))
    await asyncio.wait([answering], timeout=10)
    assert answering.cancelled()
    assert len(generator.aborted) == 1


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
async def test_cancelling_a_call_ends_its_generation(stub, generator, method):
    generator.blocks_after = 1
    call = stub.ModelInfer(text()) if method == "ModelInfer" else stub.ModelStreamInfer(iter([text()]))
    waiting = asyncio.ensure_future(received(call) if method == "ModelStreamInfer" else call)
    async with asyncio.timeout(20):
        await generator.has_blocked.wait()
        call.cancel()
        await generator.has_aborted.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert call.cancelled()
    assert generator.finished == []


async def test_a_deadline_ends_the_call_and_its_generation(stub, generator):
    generator.blocks_after = 1
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ModelInfer(text(), timeout=0.5)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    async with asyncio.timeout(20):
        await generator.has_aborted.wait()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (QueueFull("full", 1.2), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (NotReady("starting", 2.0), grpc.StatusCode.UNAVAILABLE),
        (RuntimeError("secret"), grpc.StatusCode.INTERNAL),
    ],
)
async def test_refusals_have_statuses_and_no_inner_details(stub, generator, error, status):
    generator.refusal = error
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ModelInfer(text())
    assert caught.value.code() == status
    assert "secret" not in caught.value.details()
    retry_after = dict(caught.value.trailing_metadata()).get("retry-after")
    assert retry_after == (None if status is grpc.StatusCode.INTERNAL else "2")


def with_parameter(message, name, **value):
    field, content = next(iter(value.items()))
    message.parameters[name].MergeFrom(pb.InferParameter(**{field: content}))
    return message


def changed(message, **fields):
    for name, value in fields.items():
        message.MergeFrom(type(message)(**{name: value}))
    return message


def with_input(message, **fields):
    message.inputs.add(**fields)
    return message


def with_output(message, name, **parameters):
    output = message.outputs.add(name=name)
    for key, value in parameters.items():
        output.parameters[key].int64_param = value
    return message


def with_raw(message, *contents):
    message.raw_input_contents.extend(contents)
    return message


def in_shared_memory():
    message = identity("INT32", [1], int_contents=[1])
    message.inputs[0].parameters["shared_memory_region"].string_param = "a"
    return message


INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
ONE = {"int_contents": [1]}
BAD = [
    (lambda: request("none"), NOT_FOUND),
    (lambda: request(model_version="2"), NOT_FOUND),
    (lambda: pb.ModelInferRequest(), NOT_FOUND),
    (lambda: pb.ModelInferRequest(model_name="simple"), INVALID),
    (lambda: pb.ModelInferRequest(model_name=TINY), INVALID),
    (lambda: changed(request(), id="x" * 129), INVALID),
    (lambda: with_input(request(), name="INPUT2", datatype="INT32", shape=[0]), INVALID),
    (lambda: with_input(request(), name="INPUT1", datatype="INT32", shape=[0]), INVALID),
    (lambda: with_input(request(), name="", datatype="INT32", shape=[0]), INVALID),
    (lambda: identity("INT33", [1], **ONE), INVALID),
    (lambda: identity("", [1], **ONE), INVALID),
    (lambda: identity("INT32", [2], **ONE), INVALID),
    (lambda: identity("INT32", [-1], **ONE), INVALID),
    (lambda: identity("INT32", [2**62], **ONE), INVALID),
    (lambda: identity("INT32", [1] * 17, **ONE), INVALID),
    (lambda: identity("INT32", [1]), INVALID),
    (lambda: identity("INT32", [1], int64_contents=[1]), INVALID),
    (lambda: identity("INT32", [1], int_contents=[1], fp32_contents=[1]), INVALID),
    (lambda: identity("INT8", [1], int_contents=[128]), INVALID),
    (lambda: identity("UINT16", [1], uint_contents=[65536]), INVALID),
    (lambda: identity("FP16", [1], fp32_contents=[1]), INVALID),
    (lambda: identity("BF16", [1]), INVALID),
    (lambda: identity("INT32", [1], raw=bytes(3)), INVALID),
    (lambda: identity("INT32", [1], raw=bytes(8)), INVALID),
    (lambda: identity("INT32", [1], raw=bytes(4), **ONE), INVALID),
    (lambda: identity("BYTES", [1], raw=bytes(3)), INVALID),
    (lambda: identity("BYTES", [1], raw=b"\xff\xff\xff\xff"), INVALID),
    (lambda: identity("BOOL", [1], raw=b"\2"), INVALID),
    (lambda: with_raw(request(), bytes(64)), INVALID),
    (lambda: with_raw(request(), bytes(64), bytes(64), bytes(64)), INVALID),
    (lambda: in_shared_memory(), grpc.StatusCode.UNIMPLEMENTED),
    (lambda: with_output(request(), "NONE"), INVALID),
    (lambda: with_output(with_output(request(), "OUTPUT0"), "OUTPUT0"), INVALID),
    (lambda: with_output(request(), "OUTPUT0", classification=-1), INVALID),
    (lambda: with_output(request(), "OUTPUT0", shared_memory_region=1), grpc.StatusCode.UNIMPLEMENTED),
    (lambda: with_parameter(request(), "sequence_id", int64_param=1), INVALID),
    (lambda: with_parameter(request(), "sequence_start", bool_param=True), INVALID),
    (lambda: with_parameter(request(), "priority", uint64_param=11), INVALID),
    (lambda: with_parameter(request(), "priority", string_param="1"), INVALID),
    (lambda: with_parameter(request(), "timeout", int64_param=-1), INVALID),
    (lambda: text(b""), INVALID),
    (lambda: text(b"\xff"), INVALID),
    (lambda: text(b"x" * 2000), INVALID),
    (lambda: text(unknown=1), INVALID),
    (lambda: text(temperature=3.0), INVALID),
    (lambda: text(max_tokens=2.5), INVALID),
    (lambda: text(max_tokens="5"), INVALID),
    (lambda: with_output(text(), "text"), INVALID),
    (lambda: identity("BYTES", [20_000], bytes_contents=[b""] * 20_000), INVALID),  # many pieces
    (
        lambda: pb.ModelInferRequest(model_name="identity", inputs=[pb.ModelInferRequest.InferInputTensor()] * 20_000),
        INVALID,
    ),
    (lambda: text(**{f"p{number}": 1 for number in range(5_000)}), INVALID),
    (lambda: identity("INT8", [200_001], raw=bytes(200_001)), grpc.StatusCode.RESOURCE_EXHAUSTED),
]


async def test_bad_requests_have_their_statuses_and_harm_nothing(stub):
    wrong = []
    for index, (make, status) in enumerate(BAD):
        try:
            await stub.ModelInfer(make())
            found = grpc.StatusCode.OK
        except grpc.aio.AioRpcError as error:
            found = error.code()
        if found != status:
            wrong.append((index, found, status))
        assert (await stub.ModelInfer(request())).model_name == "simple"
    assert wrong == []


async def test_what_is_no_message_is_refused_and_not_logged(stub, caplog):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(b"\xff\xff\xff")
    assert caught.value.code() == INVALID
    call = stub.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    refused, answered = await received(call(iter([b"\xff", request().SerializeToString()])))
    assert "cannot be decoded" in pb.ModelStreamInferResponse.FromString(refused).error_message
    assert pb.ModelStreamInferResponse.FromString(answered).infer_response.model_name == "simple"
    assert caplog.records == []
    assert (await stub.ModelInfer(request())).model_name == "simple"


async def test_a_message_that_grows_beyond_the_bound_is_refused(stub):
    message = identity("INT8", [50_000_000], raw=bytes(50_000_000))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ModelInfer(message, compression=grpc.Compression.Gzip)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
