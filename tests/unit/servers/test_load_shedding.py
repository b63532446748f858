from dataclasses import replace

import pytest

from rayinfer.errors import QueueFull
from support.fakes.fake_generator import FakeGenerator

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


async def test_without_models_the_service_says_that_it_is_not_ready(client, models):
    models.clear()
    assert (await client.post("/v1/completions", json={"prompt": "Hi"})).status_code == 503
