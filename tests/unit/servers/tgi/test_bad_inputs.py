"""Bad inputs of TGI's paths: each has its status, and a good request works after it."""

import json

import pytest

INPUTS = {"inputs": "hello"}
HUGE = 10**400
NO_INTEGER = ["1", 1.5, True, [], {}]
NO_NUMBER = ["1", True, [], {}]
NO_BOOLEAN = ["true", 1, [], {}]

OUT_OF_RANGE = {
    "best_of": [0, -1, 129, HUGE],
    "temperature": [0, -1, 2.5, HUGE],
    "repetition_penalty": [0, -1, 11],
    "frequency_penalty": [-2.5, 2.5],
    "top_k": [0, -1, 2**31],
    "top_p": [0, -0.5, 1.5],
    "typical_p": [0, -0.5, 1.5],
    "max_new_tokens": [0, -1, 256, 2**31, HUGE],
    "truncate": [0, -1, 256, HUGE],
    "seed": [-1, 2**64, HUGE],
    "top_n_tokens": [-1, 21],
}
INTEGERS = ("best_of", "top_k", "max_new_tokens", "truncate", "seed", "top_n_tokens")
PARAMETERS = [
    *((name, value) for name, values in OUT_OF_RANGE.items() for value in values),
    *((name, value) for name in INTEGERS for value in NO_INTEGER),
    *((name, value) for name in ("temperature", "top_p", "typical_p", "repetition_penalty") for value in NO_NUMBER),
    *((name, value) for name in ("do_sample", "details", "watermark", "return_full_text") for value in NO_BOOLEAN),
    *(("stop", value) for value in ([""], ["x"] * 17, "x", [1], [None], {})),
    *(("grammar", value) for value in ({"type": "json", "value": {}}, {"type": "regex", "value": "a"}, {}, "a", 1)),
    *(("adapter_id", value) for value in ("a", "", 1)),
    *(("speculation", value) for value in ("on", "4", 0, 17, -1, HUGE, 1.5, True, ["auto"], {})),
    ("watermark", True),
]  # fmt: skip
TOGETHER = [
    ("/generate", {"best_of": 2}, "best_of"),
    ("/generate", {"best_of": 2, "temperature": 1.0}, "best_of"),
    ("/generate", {"best_of": 2, "do_sample": True, "seed": 1}, "seed"),
    ("/generate_stream", {"best_of": 2, "do_sample": True}, "best_of"),
    ("/generate_stream", {"decoder_input_details": True}, "decoder_input_details"),
]
BODIES = [
    (b"", 400),
    (b"{", 400),
    (b"[]", 400),
    (b'"hello"', 400),
    (b"null", 400),
    (b'{"inputs": NaN}', 400),
    (b'{"inputs": "\xff"}', 400),
    (b"{}", 422),
    (b'{"inputs": ""}', 422),
    (b'{"inputs": null}', 422),
    (b'{"inputs": 1}', 422),
    (b'{"inputs": ["a"]}', 422),
    (b'{"inputs": "a", "parameters": []}', 422),
    (b'{"inputs": "a", "parameters": "x"}', 422),
    (b'{"inputs": "a", "stream": "yes"}', 422),
    (json.dumps({"inputs": "a " * 400}).encode(), 422),
    (b'{"inputs": "' + b"a" * 200_000 + b'"}', 413),
]


async def check_refused(client, generator, path, content, status, field=None):
    response = await client.post(path, content=content, headers={"content-type": "application/json"})
    assert response.status_code == status, (content[:200], response.text)
    assert set(response.json()) == {"error", "error_type"}
    assert response.json()["error_type"] == "validation"
    assert len(response.content) < 1500
    assert field is None or field in response.json()["error"]
    assert (response.status_code == 422) == response.json()["error"].startswith("Input validation error: ")
    assert generator.requests == []


async def check_good(client, generator):
    assert (await client.post("/generate", json=INPUTS)).status_code == 200
    generator.requests.clear()


def test_the_table_is_long():
    assert len(PARAMETERS) + len(TOGETHER) + len(BODIES) >= 120


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/", "/invocations"])
async def test_each_parameter_is_refused_by_its_name(client, generator, path):
    for name, value in PARAMETERS:
        content = json.dumps(INPUTS | {"parameters": {name: value}}).encode()
        await check_refused(client, generator, path, content, 422, name)
        await check_good(client, generator)


@pytest.mark.parametrize(("path", "parameters", "field"), TOGETHER)
async def test_conflicting_parameters_are_refused(client, generator, path, parameters, field):
    content = json.dumps(INPUTS | {"parameters": parameters}).encode()
    await check_refused(client, generator, path, content, 422, field)
    await check_good(client, generator)


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/"])
async def test_bodies_that_are_wrong_are_refused(client, generator, path):
    for content, status in BODIES:
        await check_refused(client, generator, path, content, status)
        await check_good(client, generator)


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", "/generate", {"content-type": "text/plain"}, 415),
        ("POST", "/generate", {"content-encoding": "gzip"}, 415),
        ("GET", "/generate", {}, 405),
        ("PUT", "/generate_stream", {}, 405),
        ("DELETE", "/", {}, 405),
        ("POST", "/info", {}, 405),
        ("GET", "/chat_tokenize", {}, 405),
        ("POST", "/models/gone/generate", {}, 404),
        ("POST", "/models/gone", {}, 404),
        ("GET", "/models/gone/info", {}, 404),
    ],
)
async def test_wrong_methods_headers_and_models_are_refused(client, generator, method, path, headers, status):
    response = await client.request(method, path, content=json.dumps(INPUTS), headers=headers)
    assert response.status_code == status
    assert set(response.json()) == {"error", "error_type"}
    await check_good(client, generator)


@pytest.mark.parametrize("messages", [[], "x", [{}], [{"role": "nobody", "content": "x"}], [{"role": "user"}], None])
async def test_conversations_that_are_wrong_are_refused(client, generator, messages):
    response = await client.post("/chat_tokenize", json={"messages": messages})
    assert (response.status_code, response.json()["error_type"]) == (422, "validation")
    await check_good(client, generator)


@pytest.mark.parametrize("value", ["", 1, ["a"], {}])
async def test_texts_to_tokenize_that_are_wrong_are_refused(client, generator, value):
    response = await client.post("/tokenize", json={"inputs": value})
    assert (response.status_code, response.json()["error_type"]) == (422, "validation")
    await check_good(client, generator)
