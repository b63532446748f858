from dataclasses import replace

import httpx
import pytest

from rayinfer.errors import QueueFull
from support.fakes.fake_generator import FakeGenerator

KSERVE_ACTIONS = ("infer", "generate", "generate_stream")
FULL = QueueFull("2 requests are waiting already, the limit is 2", retry_after_s=3.0)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/completions/", "/v1/chat/completions", "/chat/completions/"])
async def test_a_full_queue_refuses_before_anything_is_read(client, generator, metrics, path):
    generator.full = FULL
    response = await client.post(path, content=b"not even JSON")
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")
    assert response.json()["error"] == {
        "message": str(FULL), "type": "rate_limit_error", "param": None, "code": "queue_full",
    }  # fmt: skip
    assert generator.requests == []
    assert 'rayinfer_requests_refused_total{reason="queue_full"} 1.0' in metrics.render().decode()


async def test_a_full_queue_refuses_no_other_path(client, generator):
    generator.full = FULL
    for path in ("/health", "/ready", "/metrics", "/v1/models"):
        assert (await client.get(path)).status_code == 200
    assert (await client.get("/v1/completions")).status_code == 405


async def test_as_long_as_one_model_has_room_the_models_decide(client, generator, models):
    models["b"] = replace(models["org/tiny"], name="b", generator=FakeGenerator(pieces=("other",)))
    generator.full = FULL
    answer = await client.post("/v1/completions", json={"prompt": "Hi", "model": "b"})
    assert answer.json()["choices"][0]["text"] == "other"


async def test_a_model_that_has_room_again_answers(client, generator):
    generator.full = FULL
    assert (await client.post("/v1/completions", json={"prompt": "Hi"})).status_code == 429
    generator.full = None
    assert (await client.post("/v1/completions", json={"prompt": "Hi"})).status_code == 200


async def test_paths_are_found_below_an_applications_prefix(app, generator):
    generator.full = FULL
    transport = httpx.ASGITransport(app, root_path="/prefix")
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        for path in ("/v1/completions", "/generate", "/v2/models/org/tiny/infer"):
            assert (await client.post("/prefix" + path, content=b"not even JSON")).status_code == 429, path
        assert (await client.get("/prefix/v1/models")).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        *(f"/v2/models/org/tiny{version}/{action}" for version in ("", "/versions/1") for action in KSERVE_ACTIONS),
        *(f"/models/org/tiny/{action}" for action in ("generate", "generate_stream", "invocations", "api")),
    ],
)
async def test_a_model_that_the_path_names_refuses_alone(client, generator, models, path):
    other = FakeGenerator()
    models["b"] = replace(models["org/tiny"], name="b", generator=other)
    generator.full = FULL
    method = "PUT" if path.endswith("/api") else "POST"
    refused = await client.request(method, path, content=b"not even JSON")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "3")
    assert "error" in refused.json() or "message" in refused.json()
    for taken in (path.replace("org/tiny", "b"), path.replace("org/tiny", "missing")):
        assert (await client.request(method, taken, content=b"not even JSON")).status_code in (400, 404, 422)
    other.full, generator.full = FULL, None
    assert (await client.request(method, path, content=b"not even JSON")).status_code in (400, 422)


async def test_without_models_the_service_says_that_it_is_not_ready(client, models):
    models.clear()
    assert (await client.post("/v1/completions", json={"prompt": "Hi"})).status_code == 503
