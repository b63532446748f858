"""OpenAI's embeddings and vLLM's pooling and classification, over fake predictors behind dispatchers."""

import asyncio
import base64

import httpx
import numpy as np
import openai
import pytest

from support.fakes.fake_predictor import LABELS, vector_of
from support.services.polling import until

TEXTS = ["one two three", "The quick brown fox", "What is the capital of France?"]


def unit(vector, dimensions=None):
    vector = vector[:dimensions].astype(np.float64)
    return vector / np.linalg.norm(vector)


async def answer(client, path, **fields):
    response = await client.post(path, json=fields)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings", "/v1/embeddings/"])
async def test_texts_and_token_ids_have_their_vectors_in_order(client, predictors, path):
    ids = [predictors.tokenizer.encode(text) for text in TEXTS]
    for value, wanted in (
        (TEXTS[0], ids[:1]),
        (TEXTS, ids),
        ([5, 6, 7.0], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ):
        body = await answer(client, path, input=value, model="embedder", user="u")
        assert [each["index"] for each in body["data"]] == list(range(len(wanted)))
        for each, token_ids in zip(body["data"], wanted, strict=True):
            np.testing.assert_allclose(each["embedding"], unit(vector_of(token_ids, 8)), rtol=1e-6)
        num_tokens = sum(map(len, wanted))
        assert body["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens, "completion_tokens": 0}
        assert (body["object"], body["model"], body["data"][0]["object"]) == ("list", "embedder", "embedding")


async def test_an_embedding_is_cut_and_then_normalized(client, predictors):
    token_ids = predictors.tokenizer.encode(TEXTS[0])
    for dimensions in (2, 4, 8, None):
        body = await answer(client, "/v1/embeddings", input=TEXTS[0], dimensions=dimensions)
        np.testing.assert_allclose(body["data"][0]["embedding"], unit(vector_of(token_ids, 8), dimensions), rtol=1e-6)
    raw = await answer(client, "/v1/embeddings", input=TEXTS[0], use_activation=False)
    np.testing.assert_array_equal(raw["data"][0]["embedding"], vector_of(token_ids, 8))


async def test_base64_is_little_endian_float32(client):
    floats = await answer(client, "/v1/embeddings", input=TEXTS, encoding_format="float")
    coded = await answer(client, "/v1/embeddings", input=TEXTS, encoding_format="base64")
    for one, other in zip(floats["data"], coded["data"], strict=True):
        vector = np.frombuffer(base64.b64decode(other["embedding"]), "<f4")
        np.testing.assert_array_equal(np.float32(one["embedding"]), vector)


@pytest.mark.parametrize("encoding_format", ["base64", "float", openai.NOT_GIVEN])
async def test_the_official_client_reads_embeddings(predictors, encoding_format):
    transport = httpx.ASGITransport(predictors.app)
    async with openai.AsyncOpenAI(
        base_url="http://service/v1",
        api_key="none",
        max_retries=0,
        http_client=httpx.AsyncClient(transport=transport),
        _strict_response_validation=encoding_format is not openai.NOT_GIVEN and encoding_format == "float",
    ) as official:
        created = await official.embeddings.create(input=TEXTS, model="embedder", encoding_format=encoding_format)
    assert created.usage.total_tokens == sum(len(predictors.tokenizer.encode(text)) for text in TEXTS)
    first = created.data[0].embedding
    if encoding_format == "base64":
        first = np.frombuffer(base64.b64decode(first), "<f4")
    np.testing.assert_allclose(first, unit(vector_of(predictors.tokenizer.encode(TEXTS[0]), 8)), rtol=1e-6)


async def test_long_texts_are_refused_or_truncated(client, predictors):
    long = "one two three four five " * 30
    refused = await client.post("/v1/embeddings", json={"input": ["short", long]})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert "maximum context length is 64 tokens" in refused.text
    for side in ("left", "right"):
        for most in (-1, 10):
            await answer(client, "/v1/embeddings", input=long, truncate_prompt_tokens=most, truncation_side=side)
            sent = predictors.engines["embedder"].submitted[-1].prompt_token_ids
            whole = predictors.tokenizer.encode(long, add_special_tokens=False)
            kept = (64 if most == -1 else most) - 2
            assert sent == [0, *(whole[:kept] if side == "right" else whole[-kept:]), 1]


async def test_an_instruction_is_put_before_texts_by_its_name(client, predictors):
    await answer(client, "/v1/embeddings", input="one", prompt_name="query")
    assert predictors.engines["embedder"].submitted[-1].prompt_token_ids == predictors.tokenizer.encode("query: one")


async def test_settings_reach_the_engine(client, predictors):
    await client.post(
        "/v1/embeddings", json={"input": "a", "priority": 3, "cache_salt": "pepper"}, headers={"X-Vllm-Priority": "-2"}
    )
    request = predictors.engines["embedder"].submitted[-1]
    assert (request.priority, request.cache_salt, request.prediction.task) == (-2, "pepper", "embed")
    assert request.trace


async def test_answers_are_in_the_order_of_the_inputs_not_of_the_outputs(client, predictors):
    engine = predictors.engines["embedder"]
    engine.may_answer.clear()
    asked = asyncio.create_task(answer(client, "/v1/embeddings", input=TEXTS, use_activation=False))
    await until(lambda: len(engine.submitted) == len(TEXTS))
    engine.may_answer.set()
    for each, text in zip((await asked)["data"], TEXTS, strict=True):
        np.testing.assert_array_equal(each["embedding"], vector_of(predictors.tokenizer.encode(text), 8))


async def test_the_first_failed_item_fails_its_request_alone(client, predictors):
    engine = predictors.engines["embedder"]
    bad = predictors.tokenizer.encode("bad")
    engine.error_of = lambda request: "the text is odd" if request.prompt_token_ids == bad else ""
    engine.fails = lambda request: request.prompt_token_ids == [9]
    wrong, fine, broken = await asyncio.gather(
        client.post("/v1/embeddings", json={"input": ["one", "bad", "two"]}),
        client.post("/v1/embeddings", json={"input": TEXTS}),
        client.post("/v1/embeddings", json={"input": [[9]]}),
    )
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (422, "prediction_failed")
    assert wrong.json()["error"]["message"] == "Input 1: the text is odd"
    assert fine.status_code == 200
    assert (broken.status_code, broken.json()["error"]["code"]) == (500, "generation_failed")


async def test_a_client_that_leaves_ends_all_of_its_items(client, predictors):
    engine = predictors.engines["embedder"]
    engine.may_answer.clear()
    leaving = asyncio.create_task(client.post("/v1/embeddings", json={"input": TEXTS}))
    await until(lambda: len(engine.submitted) == len(TEXTS))
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await until(lambda: len(engine.aborted) == len(TEXTS))
    assert sorted(engine.aborted) == sorted(request.request_id for request in engine.submitted)
    engine.may_answer.set()
    assert (await client.post("/v1/embeddings", json={"input": "one"})).status_code == 200


@pytest.mark.parametrize("path", ["/classify", "/v1/classify"])
async def test_texts_are_classified(client, predictors, path):
    body = await answer(client, path, input=TEXTS[:2])
    for each, text in zip(body["data"], TEXTS, strict=False):
        logits = vector_of(predictors.tokenizer.encode(text), 3) / 4
        wanted = np.exp(logits) / np.exp(logits).sum()
        np.testing.assert_allclose(each["probs"], wanted, rtol=1e-5)
        assert (each["label"], each["num_classes"]) == (LABELS[wanted.argmax()], 3)
    raw = await answer(client, path, input=TEXTS[0], use_activation=False)
    np.testing.assert_allclose(raw["data"][0]["probs"], vector_of(predictors.tokenizer.encode(TEXTS[0]), 3) / 4)


async def test_pooling_returns_the_numbers_of_every_task(client, predictors):
    ids = predictors.tokenizer.encode(TEXTS[0])
    vectors = (await answer(client, "/pooling", input=TEXTS[0], task="token_embed", normalize=False))["data"]
    np.testing.assert_array_equal(vectors[0]["data"], [vector_of([token_id], 8) for token_id in ids])
    assert vectors[0]["object"] == "pooling"
    tags = (await answer(client, "/pooling", input=TEXTS[0], model="tagger"))["data"][0]["data"]
    assert np.shape(tags) == (len(ids), 3)
    np.testing.assert_allclose(np.sum(tags, -1), 1, rtol=1e-5)
    for model in ("embedder", "classifier", "tagger"):
        assert (await answer(client, "/v1/pooling", input=TEXTS, model=model))["model"] == model
    coded = (await answer(client, "/pooling", input=TEXTS[0], encoding_format="base64"))["data"][0]["data"]
    assert len(base64.b64decode(coded)) == 32


async def test_a_response_of_too_many_numbers_is_refused_before_anything_is_computed(client, predictors):
    refused = await client.post("/pooling", json={"input": [[1] * 60] * 30, "task": "token_embed", "model": "embedder"})
    assert refused.status_code == 400
    assert "14400 numbers, at most 4096" in refused.text
    assert not predictors.engines["embedder"].submitted
