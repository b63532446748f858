"""Bad inputs to the paths of v2 and v1: exact statuses, an error that is a string, and a service that goes on."""

import gzip
import json

import pytest

LENGTH = "Inference-Header-Content-Length"
IDENTITY, SIMPLE, TINY = "/v2/models/identity", "/v2/models/simple", "/v2/models/org/tiny"
ROW = [1] * 16


def one(datatype="INT32", shape=(2,), data=(1, 2), name="IN", **fields):
    entry = {"name": name, "datatype": datatype, "shape": shape, "data": data, **fields}
    return {"inputs": [{key: value for key, value in entry.items() if value is not None}]}


def two(**second):
    first = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": ROW}
    return {"inputs": [first, first | {"name": "INPUT1"} | second]}


def texts(**fields):
    return {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["a"]}], **fields}


def text_with(name, datatype, data):
    return {"inputs": [*texts()["inputs"], {"name": name, "datatype": datatype, "shape": [len(data)], "data": data}]}


def raw(content, **headers):
    return {"content": content, "headers": {name.replace("_", "-"): value for name, value in headers.items()}}


def binary(header, blob, length=None):
    encoded = json.dumps(header).encode()
    return {"content": encoded + blob, "headers": {LENGTH: str(len(encoded)) if length is None else length}}


def sized(size, datatype="INT32", shape=(2,)):
    return one(datatype, shape, None, parameters={"binary_data_size": size})


def nested(depth):
    data = [1]
    for _ in range(depth):
        data = [data]
    return data


# (path, what is sent, status)
INFER = [
    (IDENTITY, raw(b""), 400),
    (IDENTITY, raw(b"{"), 400),
    (IDENTITY, raw(b"[]"), 400),
    (IDENTITY, raw(b'{"inputs": NaN}'), 400),
    (IDENTITY, raw(b"\xff"), 400),
    (IDENTITY, raw(b"{}", content_type="text/plain"), 415),
    (IDENTITY, raw(b"{}", content_type="application/x-www-form-urlencoded"), 415),
    (IDENTITY, raw(b"{}", content_encoding="br"), 415),
    (IDENTITY, raw(b"{}", content_encoding="gzip"), 400),
    (IDENTITY, raw(gzip.compress(b"{}")[:-4], content_encoding="gzip"), 400),
    (IDENTITY, raw(gzip.compress(b"{}") + b"x", content_encoding="gzip"), 400),
    (IDENTITY, raw(gzip.compress(bytes(10_000_000)), content_encoding="gzip"), 413),
    (IDENTITY, raw(bytes(200_001)), 413),
    (IDENTITY, {}, 400),
    (IDENTITY, {"inputs": None}, 400),
    (IDENTITY, {"inputs": {}}, 400),
    (IDENTITY, {"inputs": []}, 400),
    (IDENTITY, {"inputs": [1]}, 400),
    (IDENTITY, {"inputs": [{}]}, 400),
    (IDENTITY, one(name=""), 400),
    (IDENTITY, one(name=1), 400),
    (IDENTITY, one(name="x" * 257), 400),
    (IDENTITY, one(name="OTHER"), 400),
    (IDENTITY, {"inputs": one()["inputs"] * 2}, 400),
    (IDENTITY, {"inputs": one()["inputs"] * 65}, 400),
    (IDENTITY, one("INT33"), 400),
    (IDENTITY, one("int32"), 400),
    (IDENTITY, one(None), 400),
    (IDENTITY, one(["INT32"]), 400),
    (IDENTITY, one(shape="2"), 400),
    (IDENTITY, one(shape=None), 400),
    (IDENTITY, one(shape=[2.0]), 400),
    (IDENTITY, one(shape=[True]), 400),
    (IDENTITY, one(shape=[-1]), 400),
    (IDENTITY, one(shape=[3]), 400),
    (IDENTITY, one(shape=[1] * 17), 400),
    (IDENTITY, one(shape=[2**62]), 400),
    (IDENTITY, one(shape=[2**20, 2**20]), 400),
    (IDENTITY, one(data=None), 400),
    (IDENTITY, one(data="12"), 400),
    (IDENTITY, one(data={"0": 1}), 400),
    (IDENTITY, one(data=[1, "2"]), 400),
    (IDENTITY, one(data=[1, None]), 400),
    (IDENTITY, one(data=[1, True]), 400),
    (IDENTITY, one(data=[1, 2.0]), 400),
    (IDENTITY, one(data=[1, 2**31]), 400),
    (IDENTITY, one(data=[1, [2]]), 400),
    (IDENTITY, one(shape=[1], data=nested(18)), 400),
    (IDENTITY, one("UINT8", data=[-1, 0]), 400),
    (IDENTITY, one("INT64", data=[10**30, 0]), 400),
    (IDENTITY, one("FP32", data=[1e39, 0]), 400),
    (IDENTITY, raw(b'{"inputs":[{"name":"IN","datatype":"FP64","shape":[1],"data":[1e999]}]}'), 400),
    (IDENTITY, one("FP32", data=["1", "2"]), 400),
    (IDENTITY, one("BOOL", data=[0, 1]), 400),
    (IDENTITY, one("BYTES", data=[0, 1]), 400),
    (IDENTITY, one("FP16"), 400),
    (IDENTITY, one("BF16"), 400),
    (IDENTITY, one(parameters=[]), 400),
    (IDENTITY, one(parameters={"a": []}), 400),
    (IDENTITY, one(parameters={"binary_data_size": 8}), 400),
    (IDENTITY, sized(8), 400),
    (IDENTITY, binary(sized(8), bytes(4)), 400),
    (IDENTITY, binary(sized(8), bytes(12)), 400),
    (IDENTITY, binary(sized(7), bytes(7)), 400),
    (IDENTITY, binary(sized(12), bytes(12)), 400),
    (IDENTITY, binary(sized(-8), bytes(8)), 400),
    (IDENTITY, binary(sized("8"), bytes(8)), 400),
    (IDENTITY, binary(sized(2, "BOOL"), b"\0\2"), 400),
    (IDENTITY, binary(sized(3, "BYTES", (1,)), bytes(3)), 400),
    (IDENTITY, binary(sized(8, "BYTES", (1,)), b"\xff\xff\xff\xff1234"), 400),
    (IDENTITY, binary(sized(8, "BYTES", (1,)), bytes(8)), 400),
    (IDENTITY, binary(one(), b"12345678"), 400),
    (IDENTITY, binary(one(), b"", length="100000"), 400),
    (IDENTITY, binary(one(), b"", length="-1"), 400),
    (IDENTITY, binary(one(), b"", length="1e3"), 400),
    (IDENTITY, binary(one(), b"", length="5"), 400),
    (IDENTITY, binary(sized(4, "FP16"), bytes(4)), 400),  # and no form in JSON for the output
    (IDENTITY, binary(sized(8, "FP32"), b"\0\0\x80\x7f" * 2), 400),  # infinities
    (IDENTITY, binary(sized(5, "BYTES", (1,)), b"\1\0\0\0\xff"), 400),  # no UTF-8
    (IDENTITY, one(parameters={"shared_memory_region": "a"}), 400),
    (IDENTITY, {**one(), "outputs": {}}, 400),
    (IDENTITY, {**one(), "outputs": [1]}, 400),
    (IDENTITY, {**one(), "outputs": [{}]}, 400),
    (IDENTITY, {**one(), "outputs": [{"name": "NONE"}]}, 400),
    (IDENTITY, {**one(), "outputs": [{"name": "OUT"}, {"name": "OUT"}]}, 400),
    (IDENTITY, {**one(), "outputs": [{"name": "OUT", "parameters": {"binary_data": 1}}]}, 400),
    (IDENTITY, {**one(), "outputs": [{"name": "OUT", "parameters": {"classification": -1}}]}, 400),
    (IDENTITY, {**one(), "outputs": [{"name": "OUT", "parameters": {"classification": "2"}}]}, 400),
    (IDENTITY, {**one(), "outputs": [{"name": "OUT", "parameters": {"shared_memory_region": "a"}}]}, 400),
    (
        IDENTITY,
        {**one("BYTES", data=["a", "b"]), "outputs": [{"name": "OUT", "parameters": {"classification": 1}}]},
        400,
    ),
    (IDENTITY, {**one(), "id": 1}, 400),
    (IDENTITY, {**one(), "id": "x" * 129}, 400),
    (IDENTITY, {**one(), "parameters": []}, 400),
    (IDENTITY, {**one(), "parameters": {"a": {}}}, 400),
    (IDENTITY, {**one(), "parameters": {str(i): 1 for i in range(65)}}, 400),
    (IDENTITY, {**one(), "parameters": {"sequence_id": 7, "sequence_start": True}}, 400),
    (IDENTITY, {**one(), "parameters": {"sequence_end": True}}, 400),
    (IDENTITY, {**one(), "parameters": {"priority": 11}}, 400),
    (IDENTITY, {**one(), "parameters": {"priority": "1"}}, 400),
    (IDENTITY, {**one(), "parameters": {"timeout": -1}}, 400),
    (IDENTITY, {**one(), "parameters": {"timeout": 1.5}}, 400),
    (IDENTITY, {**one(), "parameters": {"binary_data_output": "yes"}}, 400),
    (SIMPLE, one(), 400),
    (SIMPLE, two(name="INPUT2"), 400),
    (SIMPLE, {"inputs": two()["inputs"][:1]}, 400),
    (SIMPLE, two(datatype="INT64"), 400),
    (SIMPLE, two(shape=[16]), 400),
    (SIMPLE, two(shape=[16, 1]), 400),
    (SIMPLE, two(shape=[2, 16], data=[1] * 32), 400),
    (SIMPLE, two(shape=[0, 16], data=[]), 400),
    ("/v2/models/none", one(), 404),
    ("/v2/models/simple/versions/2", two(), 404),
    ("/v2/models/simple/versions/x", two(), 404),
    (TINY, one(), 400),
    (TINY, {"inputs": [{"name": "text_input", "datatype": "INT32", "shape": [1], "data": [1]}]}, 400),
    (TINY, {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [0], "data": []}]}, 400),
    (TINY, {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["x" * 2000]}]}, 400),
    (TINY, {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1025], "data": ["x"] * 1025}]}, 400),
    (TINY, texts(outputs=[{"name": "text"}]), 400),
    (TINY, texts(outputs=[{"name": "text_output", "parameters": {"classification": 1}}]), 400),
    (TINY, texts(parameters={"unknown": 1}), 400),
    (TINY, texts(parameters={"temperature": "hot"}), 400),
    (TINY, texts(parameters={"temperature": 3}), 400),
    (TINY, texts(parameters={"max_tokens": 0}), 400),
    (TINY, text_with("sampling_parameters", "BYTES", ["{"]), 400),
    (TINY, text_with("sampling_parameters", "BYTES", ["[]"]), 400),
    (TINY, text_with("sampling_parameters", "BYTES", ['{"temperature": "hot"}']), 400),
    (TINY, text_with("sampling_parameters", "BYTES", ["{}", "{}"]), 400),
    (TINY, text_with("stream", "BOOL", [True, False]), 400),
    (TINY, text_with("stream", "INT32", [1]), 400),
    (TINY, text_with("image", "BYTES", ["a"]), 400),
]

GENERATE = [
    (TINY, {}, 400),
    (TINY, {"text_input": None}, 400),
    (TINY, {"text_input": ""}, 400),
    (TINY, {"text_input": ["a"]}, 400),
    (TINY, {"text_input": "x" * 2000}, 400),
    (TINY, {"text_input": "a", "parameters": []}, 400),
    (TINY, {"text_input": "a", "parameters": {"max_tokens": "5"}}, 400),
    (TINY, {"text_input": "a", "parameters": {"max_tokens": -1}}, 400),
    (TINY, {"text_input": "a", "parameters": {"max_tokens": 2**40}}, 400),
    (TINY, {"text_input": "a", "max_tokens": 5, "parameters": {"max_tokens": 5}}, 400),
    (TINY, {"text_input": "a", "parameters": {"temperature": -1}}, 400),
    (TINY, {"text_input": "a", "parameters": {"top_p": 2}}, 400),
    (TINY, {"text_input": "a", "parameters": {"stop": 5}}, 400),
    (TINY, {"text_input": "a", "parameters": {"details": "yes"}}, 400),
    (TINY, {"text_input": "a", "parameters": {"n": 2}}, 400),
    (TINY, {"text_input": "a", "guided_json": {}}, 400),
    (TINY, {"text_input": "a", "parameters": {"logprobs": 50}}, 400),
    (TINY, {"text_input": "a", "parameters": {"sequence_id": "s"}}, 400),
    (TINY, {"text_input": "a", "parameters": {"cache_salt": "@"}}, 400),
    (TINY, {"text_input": "a", "id": 5}, 400),
    (TINY, {"text_input": "a", "exclude_input_in_output": 0}, 400),
    (TINY, raw(b"text"), 400),
    (TINY, raw(b'{"text_input": "a"}x', **{LENGTH: "19"}), 400),
    (SIMPLE, {"text_input": "a"}, 404),
    ("/v2/models/none", {"text_input": "a"}, 404),
    ("/v2/models/org/tiny/versions/3", {"text_input": "a"}, 404),
]

PREDICT = [
    ("/v1/models/org/tiny", {}, 400),
    ("/v1/models/org/tiny", {"instances": []}, 400),
    ("/v1/models/org/tiny", {"instances": "a"}, 400),
    ("/v1/models/org/tiny", {"instances": [1]}, 400),
    ("/v1/models/org/tiny", {"instances": [{"text": "a"}]}, 400),
    ("/v1/models/org/tiny", {"instances": ["a"] * 1025}, 400),
    ("/v1/models/org/tiny", {"instances": ["a"], "parameters": {"nonsense": 1}}, 400),
    ("/v1/models/simple", {"instances": [[1] * 16]}, 400),
    ("/v1/models/simple", {"instances": [{"INPUT0": ROW}]}, 400),
    ("/v1/models/simple", {"instances": [{"INPUT0": ROW, "INPUT1": ["a"] * 16}]}, 400),
    ("/v1/models/identity", {"instances": [[1, 2], [3]]}, 400),
    ("/v1/models/identity", {"instances": [1, "a"]}, 400),
    ("/v1/models/identity", {"instances": [{"IN": 1}, 2]}, 400),
    ("/v1/models/none", {"instances": ["a"]}, 404),
]

OTHER = [
    ("POST", "/v1/models/simple:explain", {"instances": [1]}, 404),
    ("POST", "/v1/models/none:explain", {"instances": [1]}, 404),
    ("POST", "/v2/repository/models/none/load", None, 404),
    ("POST", "/v2/repository/models/org/tiny/load", None, 400),
    ("POST", "/v2/repository/models/org/tiny/unload", None, 400),
    ("POST", "/v2/repository/models/simple/load", {"parameters": {"config": "{}"}}, 400),
    ("POST", "/v2/repository/models/simple/load", {"parameters": 5}, 400),
    ("POST", "/v2/repository/index", [], 400),
    ("POST", "/v2/repository/index", {"ready": "yes"}, 400),
    ("POST", "/v2/logging", {"log_info": False}, 400),
    ("POST", "/v2/trace/setting", {"trace_level": ["TIMESTAMPS"]}, 400),
    ("GET", "/v2/models/none", None, 404),
    ("GET", "/v2/models/none/config", None, 404),
    ("GET", "/v2/models/none/stats", None, 404),
    ("GET", "/v2/models/none/trace/setting", None, 404),
    ("GET", "/v2/models/simple/versions/7/stats", None, 404),
    ("GET", "/v2/nothing", None, 404),
    ("GET", "/v2/models/simple/infer", None, 404),
    ("DELETE", "/v2/models/simple", None, 405),
    ("POST", "/v2/health/live", None, 405),
]

POSTED = [
    *((path + "/infer", sent, status) for path, sent, status in INFER),
    *((path + action, sent, status) for action in ("/generate", "/generate_stream") for path, sent, status in GENERATE),
    *((path + ":predict", sent, status) for path, sent, status in PREDICT),
]
ALL = [*(("POST", *row) for row in POSTED), *OTHER]


async def send(client, method, path, sent):
    if isinstance(sent, dict) and sent.keys() == {"content", "headers"}:
        return await client.request(method, path, **sent)
    return await client.request(method, path, **({} if sent is None else {"json": sent}))


async def assert_serves(client):
    response = await client.post(f"{IDENTITY}/infer", json=one())
    assert (response.status_code, response.json()["outputs"][0]["data"]) == (200, [1, 2])
    response = await client.post(f"{TINY}/generate", json={"text_input": "a"})
    assert (response.status_code, response.json()["text_output"]) == (200, "Hello there!")


@pytest.mark.parametrize("first", range(0, len(ALL), 40))
async def test_bad_inputs_have_their_statuses_and_harm_nothing(client, generator, first):
    wrong, rows = [], ALL[first : first + 40]
    for method, path, sent, status in rows:
        response = await send(client, method, path, sent)
        error = response.json().get("error") if response.status_code != 200 else None
        if response.status_code != status or not isinstance(error, str) or not 5 <= len(error) <= 1000:
            wrong.append((path, str(sent)[:120], response.status_code, status, response.text[:200]))
        await assert_serves(client)
    assert wrong == []
    assert len(generator.requests) == len(rows)  # the good ones
