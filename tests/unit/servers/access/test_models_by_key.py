"""Models of every protocol with keys that may not use all of them: what a key may not use, it does not see."""

from dataclasses import replace

import pytest

from rayinfer.access.api_key import Scope
from rayinfer.errors import QueueFull
from support.fakes.fake_generator import FakeGenerator
from tests.unit.servers.access.conftest import BODY

HIDDEN, ABSENT = "secret-model", "absent-model"
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
MEGATRON = {"prompts": ["Once"], "tokens_to_generate": 2}
TEXT_TENSOR = {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["Once"]}]}

# Method, path and body of requests that name a model.
LOOKUPS = [
    ("GET", "/v1/models/NAME", None),
    ("POST", "/v1/completions", BODY | {"model": "NAME"}),
    ("POST", "/v1/completions", BODY | {"model": "NAME", "stream": True}),
    ("POST", "/v1/chat/completions", CHAT | {"model": "NAME"}),
    ("POST", "/invocations", BODY | {"model": "NAME"}),
    ("POST", "/tokenize", {"model": "NAME", "prompt": "Once"}),
    ("POST", "/tokenize", CHAT | {"model": "NAME"}),
    ("POST", "/detokenize", {"model": "NAME", "tokens": [1]}),
    ("GET", "/tokenizer_info?model=NAME", None),
    ("GET", "/models/NAME/info", None),
    ("POST", "/models/NAME", {"inputs": "Once"}),
    ("POST", "/models/NAME/generate", {"inputs": "Once"}),
    ("POST", "/models/NAME/generate_stream", {"inputs": "Once"}),
    ("POST", "/models/NAME/invocations", {"inputs": "Once"}),
    ("POST", "/models/NAME/tokenize", {"inputs": "Once"}),
    ("POST", "/models/NAME/chat_tokenize", CHAT),
    ("POST", "/chat_tokenize", CHAT | {"model": "NAME"}),
    ("PUT", "/models/NAME/api", MEGATRON),
    ("GET", "/v2/models/NAME", None),
    ("GET", "/v2/models/NAME/versions/1", None),
    ("GET", "/v2/models/NAME/ready", None),
    ("GET", "/v2/models/NAME/config", None),
    ("GET", "/v2/models/NAME/stats", None),
    ("GET", "/v2/models/NAME/trace/setting", None),
    ("POST", "/v2/models/NAME/infer", TEXT_TENSOR),
    ("POST", "/v2/models/NAME/generate", {"text_input": "Once"}),
    ("POST", "/v2/models/NAME/generate_stream", {"text_input": "Once"}),
    ("POST", "/v1/models/NAME:predict", {"instances": ["Once"]}),
    ("POST", "/v1/models/NAME:explain", {"instances": ["Once"]}),
    ("POST", "/v2/repository/models/NAME/load", None),
    ("POST", "/v2/repository/models/NAME/unload", None),
    ("GET", "/is_sleeping?model=NAME", None),
    ("POST", "/pause?model=NAME", None),
]
# Requests that list models, or take the only one.
LISTINGS = [
    ("GET", "/v1/models"),
    ("POST", "/v2/repository/index"),
    ("GET", "/v2/models/stats"),
    ("GET", "/server_info"),
    ("GET", "/info"),
]
WITHOUT_NAMES = [
    ("POST", "/v1/completions", {"prompt": "Once"}),
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/v1/chat/completions", CHAT | {"model": "tgi"}),
    ("POST", "/invocations", {"inputs": "Once"}),
    ("POST", "/", {"inputs": "Once"}),
    ("POST", "/generate", {"inputs": "Once"}),
    ("POST", "/generate_stream", {"inputs": "Once"}),
    ("PUT", "/api", MEGATRON),
    ("POST", "/tokenize", {"inputs": "Once"}),
    ("POST", "/tokenize", {"prompt": "Once"}),
    ("POST", "/detokenize", {"tokens": [1]}),
    ("POST", "/chat_tokenize", CHAT),
    ("GET", "/tokenizer_info", None),
    ("GET", "/info", None),
]


def named(value, name):
    """Put a name into a path or a body."""
    if isinstance(value, dict):
        return {field: name if content == "NAME" else content for field, content in value.items()}
    return value if value is None else value.replace("NAME", name)


async def ask(client, method, path, body, name=""):
    content = {} if body is None else {"json": named(body, name)}
    return await client.request(method, named(path, name), headers={"Accept": "text/html"}, **content)


@pytest.fixture
def hidden(models):
    generator = FakeGenerator()
    models[HIDDEN] = replace(models["org/tiny"], name=HIDDEN, generator=generator)
    return generator


async def tiny_only(guarded):
    return guarded.client(await guarded.key("alice", Scope.INFER, Scope.OPERATE, models=("org/tiny",)))


@pytest.mark.parametrize("is_full", [False, True])
async def test_a_model_that_a_key_may_not_use_is_the_same_as_one_that_does_not_exist(guarded, hidden, is_full):
    hidden.full = QueueFull("2 requests are waiting already", retry_after_s=3.0) if is_full else None
    async with await tiny_only(guarded) as client:
        for method, path, body in LOOKUPS:
            found = await ask(client, method, path, body, HIDDEN)
            absent = await ask(client, method, path, body, ABSENT)
            assert (found.status_code, found.text) == (404, absent.text), (method, path)
            assert "secret" not in found.text, (method, path)
            assert absent.status_code == 404, (method, path)
    assert hidden.requests == []


async def test_no_listing_has_a_model_that_the_key_may_not_use(guarded, hidden):
    hidden.not_ready = "starting"
    async with await tiny_only(guarded) as client:
        for method, path in LISTINGS:
            answer = await ask(client, method, path, None)
            assert (answer.status_code, "org/tiny" in answer.text) == (200, True), path
            assert "secret" not in answer.text, path
        for path in ("/openapi.json", "/load"):
            assert "secret" not in (await client.get(path)).text
        assert (await client.get("/")).status_code == 200  # as the usable model is ready
    async with guarded.client(await guarded.key("bob")) as client:
        for method, path in LISTINGS:
            assert path == "/info" or HIDDEN in (await ask(client, method, path, None)).text, path
        assert (await client.get("/")).status_code == 503


async def test_requests_that_name_no_model_get_the_only_usable_one(guarded, hidden, generator):
    async with await tiny_only(guarded) as client:
        for method, path, body in WITHOUT_NAMES:
            answer = await ask(client, method, path, body)
            assert answer.status_code == 200, (path, answer.text)
    assert (len(generator.requests), hidden.requests) == (8, [])


async def test_the_choice_that_is_left_names_usable_models_only(guarded, hidden, models):
    models["b"] = replace(models["org/tiny"], name="b", generator=FakeGenerator())
    secret = await guarded.key("alice", models=("org/tiny", "b"))
    async with guarded.client(secret) as client:
        for method, path, body in WITHOUT_NAMES:
            answer = await ask(client, method, path, body)
            assert answer.status_code in (400, 422), (path, answer.text)
            assert "org/tiny, b" in answer.text, path
            assert "secret" not in answer.text, path


async def test_a_key_without_models_finds_none(guarded, hidden):
    async with guarded.client(await guarded.key("alice", models=("other",))) as client:
        for method, path, body in WITHOUT_NAMES:
            answer = await ask(client, method, path, body)
            assert answer.status_code == 404, (path, answer.text)
            assert "secret" not in answer.text, path
            assert "org/tiny" not in answer.text, path
        assert (await client.get("/")).status_code == 503
