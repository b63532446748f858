"""KServe's protocols on a service: REST through Serve's proxy, gRPC at the router's own port."""

import json

import grpc
import pytest

from rayinfer.servers.kserve.grpc import inference_pb2 as pb
from rayinfer.servers.kserve.grpc.methods import SERVICE
from support.services.polling import wait_until

SAMPLING = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def channel(service, grpc_port):
    with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        yield channel


def infer(channel, message):
    call = channel.unary_unary(f"/{SERVICE.full_name}/ModelInfer", pb.ModelInferRequest.SerializeToString)
    return pb.ModelInferResponse.FromString(call(message, timeout=60))


def text_message(**parameters):
    message = pb.ModelInferRequest(model_name="tiny")
    tensor = message.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(b"Once upon a time")
    for name, value in parameters.items():
        kind = "bool_param" if isinstance(value, bool) else "int64_param"
        message.parameters[name].MergeFrom(pb.InferParameter(**{kind: value}))
    return message


def test_all_ways_to_generate_have_the_same_text(service, channel):
    expected = service.text_of()
    body = {"text_input": "Once upon a time", **SAMPLING}
    assert service.http.post("/v2/models/tiny/generate", json=body).json()["text_output"] == expected
    lines = service.http.post("/v2/models/tiny/generate_stream", json=body).text.split("\n\n")
    assert "".join(json.loads(line[6:])["text_output"] for line in lines if line) == expected
    [text] = infer(channel, text_message(**SAMPLING)).outputs[0].contents.bytes_contents
    assert text.decode() == expected
    stream = channel.stream_stream(f"/{SERVICE.full_name}/ModelStreamInfer", pb.ModelInferRequest.SerializeToString)
    pieces = [
        pb.ModelStreamInferResponse.FromString(each).infer_response.outputs[0].contents.bytes_contents[0]
        for each in stream(iter([text_message(**SAMPLING)]), timeout=60)
    ]
    assert b"".join(pieces).decode() == expected


def test_the_proxies_of_serve_take_every_call_without_naming_the_application(service, serve_grpc_port):
    with grpc.insecure_channel(f"127.0.0.1:{serve_grpc_port}") as channel:
        live = channel.unary_unary(f"/{SERVICE.full_name}/ServerLive")
        assert pb.ServerLiveResponse.FromString(live(b"", timeout=60)).live
        [text] = infer(channel, text_message(**SAMPLING)).outputs[0].contents.bytes_contents
        assert text.decode() == service.text_of()
        stream = channel.stream_stream(f"/{SERVICE.full_name}/ModelStreamInfer", pb.ModelInferRequest.SerializeToString)
        messages = [text_message(**SAMPLING), text_message(temperature=-1)]
        answers = [pb.ModelStreamInferResponse.FromString(each) for each in stream(iter(messages), timeout=60)]
        pieces = [
            each.infer_response.outputs[0].contents.bytes_contents[0] for each in answers if not each.error_message
        ]
        assert b"".join(pieces) == text
        assert [each.error_message != "" for each in answers].count(True) == 1
        before = service.kv_blocks_used
        for message, status in (
            (pb.ModelInferRequest(model_name="none"), grpc.StatusCode.NOT_FOUND),
            (text_message(max_tokens=8000, temperature=0, ignore_eos=True), grpc.StatusCode.DEADLINE_EXCEEDED),
        ):
            call = channel.unary_unary(f"/{SERVICE.full_name}/ModelInfer", pb.ModelInferRequest.SerializeToString)
            with pytest.raises(grpc.RpcError) as caught:
                call(message, timeout=0.5)
            assert caught.value.code() == status
        wait_until(lambda: service.kv_blocks_used == before)


def test_the_example_models_answer_over_both(service, channel):
    row = {"datatype": "INT32", "shape": [1, 16], "data": list(range(16))}
    body = {"inputs": [{"name": "INPUT0", **row}, {"name": "INPUT1", **row}]}
    outputs = service.http.post("/v2/models/simple/infer", json=body).json()["outputs"]
    assert outputs[0]["data"] == [2 * each for each in range(16)]
    message = pb.ModelInferRequest(model_name="identity", raw_input_contents=[b"\1\2"])
    message.inputs.add(name="IN", datatype="BF16", shape=[1])
    assert list(infer(channel, message).raw_output_contents) == [b"\1\2"]


def test_a_grpc_deadline_frees_the_engine(service, channel):
    before = service.kv_blocks_used
    message = text_message(max_tokens=8000, temperature=0, ignore_eos=True)
    call = channel.unary_unary(f"/{SERVICE.full_name}/ModelInfer", pb.ModelInferRequest.SerializeToString)
    with pytest.raises(grpc.RpcError) as caught:
        call(message, timeout=0.3)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until(lambda: service.kv_blocks_used == before)
