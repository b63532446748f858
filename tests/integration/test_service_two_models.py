"""Two models behind one router, by their names in every protocol."""

import json

import grpc
import pytest

from rayinfer.servers.kserve.grpc import inference_pb2 as pb
from rayinfer.servers.kserve.grpc.server import SERVICE

PROMPT = "Once upon a time"
SAMPLING = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
MESSAGES = [{"role": "user", "content": PROMPT}]


@pytest.fixture(scope="module")
def channel(service, grpc_port):
    with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        yield channel


@pytest.fixture(scope="module")
def texts(service):
    """What each model says; they differ, so that an answer shows whose it is."""
    found = {name: service.text_of(model=name) for name in ("tiny", "other")}
    assert found["tiny"] != found["other"]
    return found


def post(service, path, body):
    response = service.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def events(service, path, body):
    """Return the JSON of a stream's events."""
    response = service.http.post(path, json=body)
    assert response.status_code == 200, response.text
    lines = [line.removeprefix("data:").strip() for line in response.text.splitlines() if line.startswith("data:")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def text_message(name):
    message = pb.ModelInferRequest(model_name=name)
    message.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(PROMPT.encode())
    message.parameters["max_tokens"].int64_param = 8
    message.parameters["temperature"].int64_param = 0
    message.parameters["ignore_eos"].bool_param = True
    return message


@pytest.mark.parametrize("name", ["tiny", "other"])
def test_openais_protocol_names_models_in_the_body(service, texts, name):
    body = {"model": name, "prompt": PROMPT, **SAMPLING}
    chunks = events(service, "/v1/completions", body | {"stream": True})
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == texts[name]
    assert {chunk["model"] for chunk in chunks} == {name}
    chat = {"model": name, "messages": MESSAGES, **SAMPLING}
    whole = post(service, "/v1/chat/completions", chat)
    deltas = [
        chunk["choices"][0]["delta"] for chunk in events(service, "/v1/chat/completions", chat | {"stream": True})
    ]
    assert "".join(delta.get("content") or "" for delta in deltas) == whole["choices"][0]["message"]["content"]
    assert whole["model"] == name
    assert post(service, "/tokenize", {"model": name, "prompt": PROMPT})["count"] > 0
    assert service.http.get(f"/v1/models/{name}").json()["id"] == name


@pytest.mark.parametrize("name", ["tiny", "other"])
def test_kserves_protocols_name_models_in_the_path(service, texts, name):
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [PROMPT]}
    inferred = post(service, f"/v2/models/{name}/infer", {"inputs": [tensor], "parameters": SAMPLING})
    assert (inferred["model_name"], inferred["outputs"][0]["data"]) == (name, [texts[name]])
    body = {"text_input": PROMPT, **SAMPLING}
    assert post(service, f"/v2/models/{name}/generate", body)["text_output"] == texts[name]
    pieces = events(service, f"/v2/models/{name}/generate_stream", body)
    assert "".join(piece["text_output"] for piece in pieces) == texts[name]
    predicted = post(service, f"/v1/models/{name}:predict", {"instances": [PROMPT], "parameters": SAMPLING})
    assert predicted["predictions"] == [texts[name]]
    assert service.http.get(f"/v2/models/{name}/ready").status_code == 200


@pytest.mark.parametrize("name", ["tiny", "other"])
def test_grpc_names_models_in_each_message(channel, texts, name):
    encode = pb.ModelInferRequest.SerializeToString
    answer = channel.unary_unary(f"/{SERVICE.full_name}/ModelInfer", encode)(text_message(name), timeout=60)
    response = pb.ModelInferResponse.FromString(answer)
    assert (response.model_name, response.outputs[0].contents.bytes_contents[0].decode()) == (name, texts[name])
    both = [text_message(name), text_message("other" if name == "tiny" else "tiny")]
    said = dict.fromkeys(texts, "")
    stream = channel.stream_stream(f"/{SERVICE.full_name}/ModelStreamInfer", encode)
    for raw in stream(iter(both), timeout=60):
        piece = pb.ModelStreamInferResponse.FromString(raw).infer_response
        said[piece.model_name] += piece.outputs[0].contents.bytes_contents[0].decode()
    assert said == texts


@pytest.mark.parametrize("name", ["tiny", "other"])
def test_tgis_and_megatrons_protocols_name_models_before_the_path(service, texts, name):
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 8}}
    whole = post(service, f"/models/{name}/generate", body)["generated_text"]
    assert texts[name].startswith(whole)  # it may have ended sooner: the protocol has no `ignore_eos`
    *_, last = events(service, f"/models/{name}/generate_stream", body)
    assert last["generated_text"] == whole
    assert service.http.get(f"/models/{name}/info").json()["model_id"] == name
    megatron = {"prompts": [PROMPT], "tokens_to_generate": 8, "top_k": 1}
    answer = service.http.put(f"/models/{name}/api", json=megatron)
    assert answer.status_code == 200, answer.text
    [text] = answer.json()["text"]
    assert (PROMPT + texts[name]).startswith(text)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/completions", {"prompt": PROMPT}),
        ("POST", "/v1/chat/completions", {"messages": MESSAGES}),
        ("POST", "/tokenize", {"prompt": PROMPT}),
        ("POST", "/generate", {"inputs": PROMPT}),
        ("POST", "/generate_stream", {"inputs": PROMPT}),
        ("GET", "/info", None),
        ("PUT", "/api", {"prompts": [PROMPT], "tokens_to_generate": 1}),
    ],
)
def test_without_a_model_the_error_lists_their_names(service, method, path, body):
    response = service.http.request(method, path, json=body)
    assert response.status_code == 400, response.text
    assert "tiny" in response.text
    assert "other" in response.text


def test_every_protocol_lists_both(service, channel):
    assert {card["id"] for card in service.http.get("/v1/models").json()["data"]} >= {"tiny", "other"}
    index = service.http.post("/v2/repository/index", json={}).json()
    assert {entry["name"] for entry in index} >= {"tiny", "other"}
    raw = channel.unary_unary(f"/{SERVICE.full_name}/RepositoryIndex")(b"", timeout=60)
    assert {entry.name for entry in pb.RepositoryIndexResponse.FromString(raw).models} >= {"tiny", "other"}
