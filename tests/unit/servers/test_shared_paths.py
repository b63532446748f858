from dataclasses import replace

import pytest
from httpx import ASGITransport, AsyncClient

from rayinfer.errors import QueueFull
from rayinfer.servers.app import build_app
from support.fakes.fake_generator import FakeGenerator

INPUTS = {"inputs": "hello there"}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
PAGE = "text/html,application/xhtml+xml,*/*;q=0.8"


@pytest.fixture
def other(models) -> FakeGenerator:
    """Serve a second model."""
    models["other"] = replace(models["org/tiny"], name="other", generator=FakeGenerator(pieces=("Bye",)))
    return models["other"].generator


async def test_a_browser_gets_a_page_that_names_no_models(client):
    response = await client.get("/", headers={"accept": PAGE})
    assert response.headers["content-type"].startswith("text/html")
    assert response.headers["vary"] == "Accept"
    assert "org/tiny" not in response.text
    for path in ("openapi.json", "metrics", "ready"):
        assert f'href="{path}"' in response.text
        assert (await client.get("/" + path)).status_code == 200


@pytest.mark.parametrize("accept", [None, "*/*", "application/json", "text/plain"])
async def test_others_get_tgis_health_from_the_root(client, generator, accept):
    headers = {} if accept is None else {"accept": accept}
    healthy = await client.get("/", headers=headers)
    assert (healthy.status_code, healthy.content) == (200, b"")
    assert (await client.head("/", headers=headers)).status_code == 200
    generator.not_ready = "starting"
    sick = await client.get("/", headers=headers)
    assert (sick.status_code, sick.json()) == (503, {"error": "unhealthy", "error_type": "healthcheck"})


@pytest.mark.parametrize(
    ("body", "field"),
    [(INPUTS, "generated_text"), (CHAT, "choices"), ({"prompt": "hi"}, "choices")],
)
async def test_fields_decide_which_protocol_answers_an_invocation(client, body, field):
    answer = (await client.post("/invocations", json=body)).json()
    assert field in (answer[0] if isinstance(answer, list) else answer)


@pytest.mark.parametrize(
    ("body", "status", "keys"),
    [
        (INPUTS | {"parameters": {"top_k": 0}}, 422, {"error", "error_type"}),
        (CHAT | {"n": 0}, 400, {"error"}),
        ({"prompt": "hi", "n": 0}, 400, {"error"}),
        ({}, 400, {"error"}),
        ({"inputs": None, "prompt": None}, 400, {"error"}),
    ],
)
async def test_errors_of_an_invocation_have_its_protocols_form(client, body, status, keys):
    response = await client.post("/invocations", json=body)
    assert (response.status_code, set(response.json())) == (status, keys)


async def test_a_body_without_any_protocols_field_names_them_all(client):
    message = (await client.post("/invocations", json={"input": "x"})).json()["error"]["message"]
    assert "inputs, messages, prompt" in message


CALLS = [
    ("POST", "/generate", INPUTS),
    ("POST", "/generate_stream", INPUTS),
    ("POST", "/tokenize", INPUTS),
    ("POST", "/chat_tokenize", CHAT),
    ("POST", "/invocations", INPUTS),
    ("POST", "", INPUTS),
    ("GET", "/info", None),
    ("PUT", "/api", {"prompts": ["hello"]}),
]


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
async def test_the_path_names_one_of_several_models(client, generator, other, method, path, body):
    unnamed = await client.request(method, path or "/", json=body)
    assert unnamed.status_code == 400
    assert "org/tiny, other" in unnamed.text
    assert "/models/NAME" in unnamed.text
    for name in ("org/tiny", "other"):
        assert (await client.request(method, f"/models/{name}{path}", json=body)).status_code == 200
    unknown = await client.request(method, f"/models/gone{path}", json=body)
    assert unknown.status_code == 404
    assert ("message" in unknown.json()) == (path == "/api")
    assert (
        len(generator.requests) == len(other.requests) == (0 if path in ("/tokenize", "/chat_tokenize", "/info") else 1)
    )


async def test_openais_model_ids_with_slashes_are_found_beside_the_models_paths(client, other):
    assert (await client.get("/models/org/tiny")).json()["id"] == "org/tiny"
    assert (await client.get("/models")).json()["object"] == "list"


@pytest.mark.parametrize(("method", "path"), [("POST", "/"), ("POST", "/generate_stream"), ("PUT", "/api")])
async def test_a_full_service_sheds_every_protocols_requests(client, generator, method, path):
    generator.full = QueueFull("full")
    response = await client.request(method, path, content=b"not read")
    assert response.status_code == 429
    assert "retry-after" in response.headers


async def test_the_document_has_the_paths_and_their_bodies(client):
    document = (await client.get("/openapi.json")).json()
    for method, path, _ in CALLS:
        assert method.lower() in document["paths"][path or "/"]
    assert {"GenerateBody", "GenerateParameters", "MegatronBody", "ChatCompletionBody"} <= set(
        document["components"]["schemas"]
    )


@pytest.mark.parametrize("name", ["tgi", "dummy"])
async def test_the_names_that_tgis_clients_send_mean_the_only_model(client, models, name):
    body = CHAT | {"model": name}
    assert (await client.post("/v1/chat/completions", json=body)).json()["model"] == "org/tiny"
    models["other"] = replace(models["org/tiny"], name="other")
    refused = await client.post("/v1/chat/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
    assert "org/tiny, other" in refused.json()["error"]["message"]


async def test_templates_of_requests_are_trusted_on_shared_paths_as_on_openais_own(models, metrics, generator):
    app = build_app(models, metrics, trusts_request_chat_template=True)
    async with AsyncClient(transport=ASGITransport(app), base_url="http://service") as client:
        for path in ("/invocations", "/v1/chat/completions"):
            response = await client.post(path, json={"model": "org/tiny", "chat_template": "hi", **CHAT})
            assert response.status_code == 200, response.text
    prompts = [request.prompt_token_ids for request in generator.requests]
    assert prompts[0] == prompts[1]
