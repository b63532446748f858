"""Scores and reranking in vLLM's, Jina's, Cohere's and TEI's forms."""

import numpy as np
import pytest

from support.fakes.fake_predictor import vector_of

QUERY = "one two three"
DOCUMENTS = ["nine ten", "one two", "one two three four", ""]


def sigmoid_of_overlap(tokenizer, first, second):
    pair = tokenizer.encode_pair(first, second)
    shared = set(pair.token_ids[: pair.num_first_tokens]) & set(pair.token_ids[pair.num_first_tokens :])
    return 1 / (1 + np.exp(0.5 - len(shared) / 8))


def cosine(tokenizer, first, second):
    one, other = (vector_of(tokenizer.encode(text), 8) for text in (first, second))
    return one @ other / np.linalg.norm(one) / np.linalg.norm(other)


async def answer(client, path, **fields):
    response = await client.post(path, json=fields)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("path", ["/score", "/v1/score", "/score/"])
@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents")])
async def test_one_text_or_as_many_as_the_others_are_scored(client, predictors, path, names):
    for first, second, pairs in (
        ("one", "two", [("one", "two")]),
        ("one", ["one", "two"], [("one", "one"), ("one", "two")]),
        (["one"], ["one", "two"], [("one", "one"), ("one", "two")]),
        (["one", "two"], ["two", "three"], [("one", "two"), ("two", "three")]),
    ):
        body = await answer(client, path, **{names[0]: first, names[1]: second})
        assert body["model"] == "reranker"
        wanted = [sigmoid_of_overlap(predictors.tokenizer, *pair) for pair in pairs]
        np.testing.assert_allclose([each["score"] for each in body["data"]], wanted, rtol=1e-5)
    near = await answer(client, path, **{names[0]: "one", names[1]: ["one", "two"]}, model="embedder")
    wanted = [cosine(predictors.tokenizer, "one", text) for text in ("one", "two")]
    np.testing.assert_allclose([each["score"] for each in near["data"]], wanted, rtol=1e-5)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank", "/models/reranker/rerank"])
async def test_documents_are_ranked_by_their_relevance(client, predictors, path):
    body = await answer(client, path, query=QUERY, documents=[DOCUMENTS[0], *({"text": d} for d in DOCUMENTS[1:])])
    scores = {i: sigmoid_of_overlap(predictors.tokenizer, QUERY, text) for i, text in enumerate(DOCUMENTS)}
    order = sorted(scores, key=lambda index: -scores[index])
    assert [each["index"] for each in body["results"]] == order
    np.testing.assert_allclose([each["relevance_score"] for each in body["results"]], [scores[i] for i in order])
    has_documents = path != "/v2/rerank"
    assert all(("document" in each) == has_documents for each in body["results"])
    assert body["usage"]["total_tokens"] == sum(
        len(predictors.tokenizer.encode_pair(QUERY, text).token_ids) for text in DOCUMENTS
    )
    short = await answer(client, path, query=QUERY, documents=DOCUMENTS, top_n=2, return_documents=True)
    assert [each["document"]["text"] for each in short["results"]] == [DOCUMENTS[i] for i in order[:2]]


async def test_the_engine_gets_the_place_where_the_second_text_begins(client, predictors):
    await answer(client, "/rerank", query="one", documents=["two three"])
    request = predictors.engines["reranker"].submitted[-1]
    pair = predictors.tokenizer.encode_pair("one", "two three")
    assert request.prompt_token_ids == pair.token_ids
    assert (
        request.prediction.num_first_tokens == pair.num_first_tokens == 2 + len(predictors.tokenizer.encode("one")) - 2
    )


async def test_embeddings_rank_too_and_each_text_is_embedded_once(client, predictors):
    body = await answer(client, "/rerank", query=QUERY, documents=[QUERY, "nine", "nine"], model="embedder")
    assert body["results"][0]["index"] == 0
    assert body["results"][0]["relevance_score"] == pytest.approx(1)
    assert len(predictors.engines["embedder"].submitted) == 2


async def test_documents_may_be_cut(client, predictors):
    await answer(client, "/rerank", query="one", documents=["two three four five " * 30], max_tokens_per_doc=3)
    sent = predictors.engines["reranker"].submitted[-1].prompt_token_ids
    assert (
        sent
        == predictors.tokenizer.encode_pair(
            "one",
            predictors.tokenizer.decode(predictors.tokenizer.encode("two three four", add_special_tokens=False)[:3]),
        ).token_ids
    )
    long = {"query": "one", "documents": ["two " * 100]}
    assert (await client.post("/rerank", json=long)).status_code == 400
    await answer(client, "/rerank", **long, truncate_prompt_tokens=-1)
    assert len(predictors.engines["reranker"].submitted[-1].prompt_token_ids) == 64


async def test_tei_ranks_texts(client, predictors):
    ranks = await answer(client, "/rerank", query=QUERY, texts=DOCUMENTS, return_text=True)
    assert [each["text"] for each in ranks] == [DOCUMENTS[each["index"]] for each in ranks]
    assert ranks == sorted(ranks, key=lambda each: -each["score"])
    assert all(0 < each["score"] < 1 for each in ranks)
    raw = await answer(client, "/rerank", query=QUERY, texts=DOCUMENTS, raw_scores=True)
    assert raw[0].keys() == {"index", "score"}
    assert raw[0]["score"] == pytest.approx(np.log(ranks[0]["score"] / (1 - ranks[0]["score"])), abs=1e-5)
