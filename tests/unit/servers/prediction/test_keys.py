"""Keys on the paths of predictors: places, lengths, priorities, models and usage."""

import asyncio

import pytest

from rayinfer.access.access_control import AccessControl
from rayinfer.access.api_key import Scope
from rayinfer.access.key_file import KeyFile
from rayinfer.servers.app import build_app
from support.services.polling import until
from tests.unit.servers.access.conftest import Guarded, LocalOwner

TEXTS = ["one", "two", "three"]


@pytest.fixture
def guarded(predictors, metrics, tmp_path) -> Guarded:
    keys = KeyFile(tmp_path / "api-keys.jsonl")
    access = AccessControl("router", LocalOwner(keys.path))
    return Guarded(build_app(predictors.models, metrics, access=access), access, keys)


async def test_a_request_takes_one_place_however_many_inputs_it_has(guarded, predictors):
    engine = predictors.engines["embedder"]
    secret = await guarded.key("alice", concurrent_requests=2, max_tokens=5)
    async with guarded.client(secret) as client:
        engine.may_answer.clear()
        asked = [asyncio.create_task(client.post("/v1/embeddings", json={"input": TEXTS})) for _ in range(2)]
        await until(lambda: len(engine.submitted) == 2 * len(TEXTS) or any(each.done() for each in asked))
        third = await client.post("/v1/embeddings", json={"input": "a"})
        engine.may_answer.set()
        assert [(await each).status_code for each in asked] == [200, 200]
        assert third.status_code == 429


async def test_lengths_priorities_and_models_are_limited(guarded, predictors):
    secret = await guarded.key("alice", max_context=3, most_urgent=0, models=("embedder", "classifier"))
    async with guarded.client(secret) as client:
        for body, status in (
            ({"input": [[1, 2, 3]]}, 200),
            ({"input": [[1], [1, 2, 3, 4]]}, 400),
            ({"input": "a", "priority": -1}, 403),
            ({"input": "a", "model": "reranker"}, 404),
        ):
            response = await client.post("/v1/embeddings", json=body)
            assert response.status_code == status, (body, response.text)
        ranked = await client.post("/rerank", json={"query": "a", "documents": ["b"]})
        assert ranked.json()["model"] == "embedder"  # the reranker does not exist for this key
        assert "reranker" not in (await client.post("/classify", json={"input": "a", "model": "tagger"})).text


async def test_usage_counts_the_tokens_of_inputs(guarded, predictors):
    secret = await guarded.key("alice", Scope.INFER, Scope.OPERATE)
    async with guarded.client(secret) as client:
        used = (await client.post("/v1/embeddings", json={"input": TEXTS})).json()["usage"]["prompt_tokens"]
        assert used == sum(len(predictors.tokenizer.encode(text)) for text in TEXTS)
        await guarded.access.synchronize()
        assert str(used) in (await client.get("/v1/usage")).text


async def test_every_path_of_predictors_needs_a_key(guarded):
    await guarded.key("alice")
    async with guarded.client() as anonymous:
        for path in ("/v1/embeddings", "/score", "/rerank", "/classify", "/pooling", "/embed", "/v1/images/classify"):
            assert (await anonymous.post(path, json={"input": "a"})).status_code == 401, path
