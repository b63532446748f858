"""Bounds on the pieces of encoded requests."""

import pytest

from rayinfer.errors import RequestError, RequestTooLarge
from rayinfer.servers.kserve.grpc import inference_pb2 as pb
from rayinfer.servers.kserve.grpc.calls import decode_message
from rayinfer.servers.kserve.grpc.message_bounds import MAX_PIECES, MAX_VARINT_BYTES, check_message_bounds


def with_contents(**contents):
    message = pb.ModelInferRequest(model_name="m", id="x")
    tensor = message.inputs.add(name="IN", datatype="INT32", shape=[1, 2])
    tensor.parameters["a"].double_param = 1.5
    for field, values in contents.items():
        getattr(tensor.contents, field).extend(values)
    return message


@pytest.mark.parametrize(
    "message",
    [
        with_contents(int_contents=[-1] * 100_000),
        with_contents(fp32_contents=[1.0] * 1_000_000),
        with_contents(bytes_contents=[b"a"] * (MAX_PIECES - 100)),
        pb.ModelInferRequest(model_name="m", raw_input_contents=[bytes(4_000_000)]),
    ],
)
def test_requests_within_their_bounds_pass(message):
    raw = message.SerializeToString()
    check_message_bounds(raw)
    assert decode_message(pb.ModelInferRequest, raw) == message


def many_parameters():
    message = with_contents()
    for number in range(MAX_PIECES // 3):
        message.inputs[0].parameters[str(number)].bool_param = True
    return message


@pytest.mark.parametrize(
    "message",
    [
        with_contents(bytes_contents=[b""] * (MAX_PIECES + 1)),
        with_contents(bool_contents=[True] * (MAX_VARINT_BYTES + 1)),
        pb.ModelInferRequest(raw_input_contents=[b""] * (MAX_PIECES + 1)),
        pb.ModelInferRequest(inputs=[pb.ModelInferRequest.InferInputTensor()] * (MAX_PIECES + 1)),
        many_parameters(),
    ],
)
def test_many_pieces_are_refused_before_they_are_decoded(message):
    with pytest.raises(RequestError, match="more than"):
        decode_message(pb.ModelInferRequest, message.SerializeToString())


@pytest.mark.parametrize("raw", [b"\xff" * 11, b"\x2a\x05\x01", b"\x08", b"\x0f", b"\x0d\x01", b"\x2a\x02\x22\x7f"])
def test_what_is_no_message_is_refused(raw):
    with pytest.raises(RequestError, match="cannot be decoded"):
        check_message_bounds(raw)


def test_other_calls_have_small_messages():
    message = pb.LogSettingsRequest()
    for number in range(2_000):
        message.settings[str(number)].bool_param = True
    with pytest.raises(RequestTooLarge):
        decode_message(pb.LogSettingsRequest, message.SerializeToString())
