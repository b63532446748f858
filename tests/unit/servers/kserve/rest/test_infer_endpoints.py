"""POST infer, generate, generate_stream and predict over a fake language model and the example models."""

import asyncio
import gzip
import json
import zlib

import httpx
import numpy as np
import pytest

from rayinfer.errors import QueueFull
from rayinfer.servers.app import build_app
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.kserve.example_models import SimpleModel
from rayinfer.servers.kserve.inference import InferenceService
from rayinfer.servers.kserve.repository import ModelRepository

ROWS = list(range(16))
LENGTH = "Inference-Header-Content-Length"
IDENTITY, SIMPLE, TINY = "/v2/models/identity", "/v2/models/simple", "/v2/models/org/tiny"


def tensor(name="IN", datatype="INT32", shape=(1, 16), data=ROWS, **parameters):
    fields = {"name": name, "datatype": datatype, "shape": list(shape)}
    return fields | ({"data": data} if data is not None else {}) | ({"parameters": parameters} if parameters else {})


def simple_body(**fields):
    return {"inputs": [tensor("INPUT0"), tensor("INPUT1", data=[1] * 16)], **fields}


def binary_body(header, *blobs):
    encoded = json.dumps(header).encode()
    return {"content": encoded + b"".join(blobs), "headers": {LENGTH: str(len(encoded))}}


def split(response):
    """Return the JSON and the binary data behind it."""
    length = int(response.headers[LENGTH])
    return json.loads(response.content[:length]), response.content[length:]


async def test_the_simple_model_adds_and_subtracts(client):
    response = await client.post(f"{SIMPLE}/infer", json=simple_body(id="a-1"))
    assert response.status_code == 200
    assert response.json() == {
        "id": "a-1",
        "model_name": "simple",
        "model_version": "1",
        "outputs": [
            {"name": "OUTPUT0", "datatype": "INT32", "shape": [1, 16], "data": [row + 1 for row in ROWS]},
            {"name": "OUTPUT1", "datatype": "INT32", "shape": [1, 16], "data": [row - 1 for row in ROWS]},
        ],
    }


async def test_binary_tensors_lie_behind_the_json_in_the_order_of_their_names(client):
    blobs = [np.arange(32, dtype="<i4").tobytes(), np.full(32, 2, "<i4").tobytes()]
    inputs = [tensor(name, shape=(2, 16), data=None, binary_data_size=128) for name in ("INPUT0", "INPUT1")]
    header = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    # As tritonclient does, which names no content type.
    request = client.build_request("POST", f"{SIMPLE}/versions/1/infer", **binary_body(header, *blobs))
    assert "content-type" not in request.headers
    body, binary = split(await client.send(request))
    assert [output["parameters"] for output in body["outputs"]] == [{"binary_data_size": 128}] * 2
    sums, differences = np.frombuffer(binary, "<i4").reshape(2, 2, 16)
    assert sums.flatten().tolist() == list(range(2, 34))
    assert differences.flatten().tolist() == list(range(-2, 30))


async def test_an_output_may_be_binary_while_another_is_not(client):
    outputs = [{"name": "OUTPUT1", "parameters": {"binary_data": True}}, {"name": "OUTPUT0"}]
    body, binary = split(await client.post(f"{SIMPLE}/infer", json=simple_body(outputs=outputs)))
    assert [output["name"] for output in body["outputs"]] == ["OUTPUT1", "OUTPUT0"]
    assert "data" not in body["outputs"][0]
    assert body["outputs"][1]["data"] == [row + 1 for row in ROWS]
    assert len(binary) == 64


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
async def test_halves_pass_unchanged_as_binary_data(client, datatype):
    header = {
        "inputs": [tensor(datatype=datatype, shape=(3,), data=None, binary_data_size=6)],
        "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}],
    }
    body, binary = split(await client.post(f"{IDENTITY}/infer", **binary_body(header, b"\x01\x7f\x80\x3f\xff\xff")))
    assert body["outputs"][0]["datatype"] == datatype
    assert binary == b"\x01\x7f\x80\x3f\xff\xff"


async def test_the_classification_extension_names_the_highest_values(client):
    outputs = [{"name": "OUTPUT0", "parameters": {"classification": 2}}]
    body = (await client.post(f"{SIMPLE}/infer", json=simple_body(outputs=outputs))).json()
    assert body["outputs"] == [
        {"name": "OUTPUT0", "datatype": "BYTES", "shape": [1, 2], "data": ["16:15", "15:14"]},
    ]


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_bodies_may_be_compressed_both_ways(client, encoding, compress):
    blob = bytes(100_000)
    header = json.dumps(
        {
            "inputs": [tensor(datatype="UINT8", shape=(100_000,), data=None, binary_data_size=100_000)],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    headers = {"Content-Encoding": encoding, "Accept-Encoding": encoding, LENGTH: str(len(header))}
    response = await client.post(f"{IDENTITY}/infer", content=compress(header + blob), headers=headers)
    assert response.status_code == 200, response.text
    assert response.headers["content-encoding"] == encoding
    assert int(response.headers["content-length"]) < 5_000
    assert split(response)[1] == blob


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_a_body_that_grows_beyond_the_bound_is_refused(client, encoding, compress):
    content = compress(b" " * 50_000_000)
    assert len(content) < 100_000
    response = await client.post(f"{IDENTITY}/infer", content=content, headers={"Content-Encoding": encoding})
    assert (response.status_code, list(response.json())) == (413, ["error"])


async def test_infer_on_a_language_model_returns_a_text_for_each(client, generator):
    body = {
        "inputs": [
            tensor("text_input", "BYTES", (2, 1), ["one", "two"]),
            tensor("sampling_parameters", "BYTES", (1,), ['{"temperature": "0", "max_tokens": 5, "stop": "12"}']),
            tensor("stream", "BOOL", (1,), [False]),
        ],
        "parameters": {"priority": 3, "timeout": 2_000_000},
    }
    response = await client.post(f"{TINY}/infer", json=body)
    assert response.json()["outputs"] == [
        {"name": "text_output", "datatype": "BYTES", "shape": [2, 1], "data": ["Hello there!", "Hello there!"]}
    ]
    request = generator.requests[0]
    assert (request.priority, request.sampling_params.max_tokens, request.sampling_params.stop) == (3, 5, ("12",))
    assert request.sampling_params.temperature == 0
    assert 1 < request.timeout_s <= 2


async def test_generate_takes_parameters_in_both_forms(client, generator):
    body = {"text_input": "Say", "id": "g", "max_tokens": 7, "parameters": {"temperature": 0.5, "stop": ["a", "b"]}}
    response = await client.post(f"{TINY}/generate", json=body)
    assert response.json() == {
        "id": "g",
        "model_name": "org/tiny",
        "model_version": "1",
        "text_output": "Hello there!",
    }
    params = generator.requests[0].sampling_params
    assert (params.max_tokens, params.temperature, params.stop) == (7, 0.5, ("a", "b"))


async def test_generate_has_details_of_the_open_inference_protocol(client, generator):
    generator.stop_reason = "x"
    body = {"text_input": "Say", "parameters": {"details": True, "exclude_input_in_output": False}}
    answer = (await client.post(f"{TINY}/generate", json=body)).json()
    assert answer["text_output"] == "SayHello there!"
    assert answer["details"]["finish_reason"] == "stop_sequence"
    assert [(token["id"], token["logprob"]) for token in answer["details"]["logprobs"]] == [
        (10, -1.0),
        (11, -1.0),
        (12, -1.0),
    ]


def events(text):
    lines = [line for line in text.split("\n\n") if line]
    assert all(line.startswith("data: {") for line in lines)  # and no [DONE]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_generate_stream_sends_an_event_for_each_output(client):
    body = {"text_input": "Say", "id": "g", "parameters": {"details": True}, "stream": True}
    response = await client.post(f"{TINY}/generate_stream", json=body)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    sent = events(response.text)
    assert [event["text_output"] for event in sent] == ["Hello", " there", "!"]
    assert {(event["id"], event["model_name"], event["model_version"]) for event in sent} == {("g", "org/tiny", "1")}
    assert sent[-1]["details"]["finish_reason"] == "eos_token"
    assert "finish_reason" not in sent[0]["details"]


async def test_a_failure_before_the_first_event_has_a_status(client, generator):
    generator.refusal = QueueFull("full", retry_after_s=3)
    response = await client.post(f"{TINY}/generate_stream", json={"text_input": "Say"})
    assert (response.status_code, response.json()) == (429, {"error": "full"})
    assert response.headers["retry-after"] == "3"


async def test_a_failure_after_the_first_event_is_an_event(client, generator):
    generator.failure = RuntimeError("secret")
    sent = events((await client.post(f"{TINY}/generate_stream", json={"text_input": "Say"})).text)
    assert sent[0]["text_output"] == "Hello"
    assert list(sent[1]) == ["error"]
    assert "secret" not in sent[1]["error"]


@pytest.mark.parametrize("action", ["infer", "generate"])
async def test_a_client_that_leaves_ends_its_generation(app, generator, action):
    generator.blocks_after = 1
    bodies = {"infer": {"inputs": [tensor("text_input", "BYTES", (1,), ["a"])]}, "generate": {"text_input": "a"}}
    messages = [{"type": "http.request", "body": json.dumps(bodies[action]).encode(), "more_body": False}]

    async def receive():
        if messages:
            return messages.pop()
        await generator.has_blocked.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        raise AssertionError("nothing is sent to a client that has left")

    scope = {"type": "http", "method": "POST", "path": f"{TINY}/{action}", "headers": [], "query_string": b""}
    async with asyncio.timeout(10):
        await app(scope, receive, send)
        await generator.has_aborted.wait()
    assert generator.finished == []


async def test_predict_returns_one_prediction_for_each_instance(client):
    texts = await client.post("/v1/models/org/tiny:predict", json={"instances": ["a", {"prompt": "b"}]})
    assert texts.json() == {"predictions": ["Hello there!", "Hello there!"]}
    rows = await client.post("/v1/models/identity:predict", json={"instances": [[1, 2], [3, 4]]})
    assert rows.json() == {"predictions": [[1, 2], [3, 4]]}
    both = {"instances": [{"INPUT0": [2] * 16, "INPUT1": [1] * 16}]}
    assert (await client.post("/v1/models/simple:predict", json=both)).json() == {
        "predictions": [{"OUTPUT0": [3] * 16, "OUTPUT1": [1] * 16}]
    }


async def test_a_tensor_model_that_takes_too_long_ends_with_504(models, metrics):
    class SlowModel(SimpleModel):
        async def infer(self, inputs, request):
            assert request.timeout_s == pytest.approx(0.05, abs=0.05)
            await asyncio.Event().wait()

    kserve = InferenceService(GenerationService(models, None, None), ModelRepository(models, [SlowModel()]))
    transport = httpx.ASGITransport(build_app(models, metrics, kserve=kserve), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        response = await client.post(f"{SIMPLE}/infer", json=simple_body(parameters={"timeout": 50_000}))
        assert (response.status_code, list(response.json())) == (504, ["error"])
        statistics = (await client.get(f"{SIMPLE}/stats")).json()["model_stats"][0]
        assert statistics["inference_stats"]["fail"]["count"] == 1
