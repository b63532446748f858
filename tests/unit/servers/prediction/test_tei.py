"""TEI's paths and those that clients of the Hub post to: `huggingface_hub` posts `inputs` to a model's root."""

import numpy as np
import pytest

from support.fakes.fake_predictor import LABELS, vector_of

TEXTS = ["one two three", "The quick brown fox"]


def unit(vector):
    return vector.astype(np.float64) / np.linalg.norm(vector)


async def answer(client, path, **fields):
    response = await client.post(path, json=fields)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("path", ["/embed", "/embed/", "/models/embedder/embed", "/models/embedder"])
async def test_texts_have_nested_embeddings(client, predictors, path):
    ids = [predictors.tokenizer.encode(text) for text in TEXTS]
    wanted = [unit(vector_of(token_ids, 8)) for token_ids in ids]
    np.testing.assert_allclose(await answer(client, path, inputs=TEXTS[0]), wanted[:1], rtol=1e-6)
    np.testing.assert_allclose(await answer(client, path, inputs=TEXTS), wanted, rtol=1e-6)
    raw = await answer(client, path, inputs=[[5, 6], [7]], normalize=False)
    np.testing.assert_array_equal(raw, [vector_of([5, 6], 8), vector_of([7], 8)])
    assert np.shape(await answer(client, path, inputs=TEXTS, dimensions=4)) == (2, 4)


async def test_truncation_and_prompts(client, predictors):
    long = "one two three four five " * 30
    refused = await client.post("/embed", json={"inputs": long})
    assert (refused.status_code, refused.json()["error_type"]) == (422, "Validation")
    assert "64 tokens" in refused.json()["error"]
    for direction in ("right", "Left"):
        await answer(client, "/embed", inputs=long, truncate=True, truncation_direction=direction, prompt_name="query")
        sent = predictors.engines["embedder"].submitted[-1].prompt_token_ids
        whole = predictors.tokenizer.encode("query: " + long, add_special_tokens=False)
        assert sent[1:-1] == (whole[:62] if direction == "right" else whole[-62:])


async def test_each_token_has_an_embedding(client, predictors):
    body = await answer(client, "/embed_all", inputs=TEXTS)
    assert [len(each) for each in body] == [len(predictors.tokenizer.encode(text)) for text in TEXTS]


@pytest.mark.parametrize("inputs", ["one", ["one"], ["one", "two"]])
async def test_one_prediction_is_a_flat_list(client, predictors, inputs):
    body = await answer(client, "/predict", inputs=inputs)
    assert {each["label"] for each in body} == set(LABELS)
    assert body == sorted(body, key=lambda each: -each["score"])
    assert sum(each["score"] for each in body) == pytest.approx(1)
    is_pair = predictors.engines["classifier"].submitted[-1].prediction.num_first_tokens > 0
    assert is_pair == (len(inputs) == 2 and isinstance(inputs, list))


async def test_a_batch_of_predictions_is_a_list_of_lists(client):
    body = await answer(client, "/predict", inputs=[["one"], ["one", "two"]], raw_scores=True)
    assert [len(each) for each in body] == [3, 3]
    assert sum(each["score"] for each in body[0]) != pytest.approx(1)


async def test_pipelines_of_the_hub_post_to_the_root_of_a_model(client, predictors):
    for inputs, count in (("one", 1), (TEXTS, 2)):
        body = await answer(client, "/models/classifier", inputs=inputs, parameters={"top_k": 2})
        assert [len(each) for each in body] == [2] * count
    entities = await answer(client, "/models/tagger", inputs=TEXTS[0], parameters={"ignore_labels": []})
    assert "".join(TEXTS[0][each["start"] : each["end"]] for each in entities).replace(" ", "") == "onetwothree"
    assert all(each.keys() == {"entity_group", "score", "word", "start", "end"} for each in entities)
    tokens = await answer(client, "/models/tagger", inputs=TEXTS[0], parameters={"aggregation_strategy": "none"})
    assert all(each["entity"] != "O" and each["index"] >= 1 for each in tokens)
    body = {"inputs": {"source_sentence": "one", "sentences": ["one", "two"]}}
    for path in ("/similarity", "/", "/models/embedder", "/models/embedder/similarity"):
        near = await answer(client, path, **body)
        assert near[0] == pytest.approx(1)
        assert near[1] < 1


async def test_without_a_name_the_root_generates(client):
    assert (await answer(client, "/", inputs="hello"))[0]["generated_text"].startswith("hello")
    assert "generated_text" in (await answer(client, "/invocations", inputs="hello"))[0]


async def test_tokens_go_out_and_back(client, predictors):
    path = "/models/embedder/tokenize"
    (tokens,) = await answer(client, path, inputs=TEXTS[0])
    assert [each["id"] for each in tokens] == predictors.tokenizer.encode(TEXTS[0])
    assert tokens[0] == {"id": 0, "text": "<s>", "special": True, "start": None, "stop": None}
    assert "".join(each["text"] for each in tokens[1:-1]).replace(" ", "") == "onetwothree"
    assert [len(each) for each in await answer(client, path, inputs=TEXTS, add_special_tokens=False)] == [
        len(predictors.tokenizer.encode(text, add_special_tokens=False)) for text in TEXTS
    ]
    ids = [each["id"] for each in tokens]
    assert await answer(client, "/models/embedder/decode", ids=ids) == [TEXTS[0]]
    assert await answer(client, "/models/embedder/decode", ids=[ids, ids[1:2]], skip_special_tokens=False) == [
        f"<s>{TEXTS[0]}</s>",
        predictors.tokenizer.decode(ids[1:2]),
    ]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("embedder", "embedding"), ("reranker", "reranker"), ("classifier", "classifier"), ("tagger", "classifier")],
)
async def test_information_is_of_the_models_kind(client, name, kind):
    info = (await client.get(f"/models/{name}/info")).json()
    assert (info["model_id"], list(info["model_type"]), info["max_input_length"]) == (name, [kind], 64)
    assert info["max_client_batch_size"] == 40
    assert (await client.get("/info")).json()["model_pipeline_tag"] == "text-generation"


async def test_headers_have_times_and_counts(client, predictors):
    headers = (await client.post("/embed", json={"inputs": TEXTS})).headers
    assert headers["x-compute-characters"] == str(sum(map(len, TEXTS)))
    assert headers["x-compute-tokens"] == str(sum(len(predictors.tokenizer.encode(text)) for text in TEXTS))
    for name in ("compute", "total", "tokenization", "queue", "inference"):
        assert int(headers[f"x-{name}-time"]) >= 0


async def test_failures_have_teis_statuses_and_types(client, predictors):
    engine = predictors.engines["embedder"]
    engine.error_of = lambda request: "the text is odd" if request.prompt_token_ids == [5] else ""
    engine.fails = lambda request: request.prompt_token_ids == [9]
    wrong = await client.post("/embed", json={"inputs": [[4], [5]]})
    assert (wrong.status_code, wrong.json()) == (422, {"error": "Input 1: the text is odd", "error_type": "Validation"})
    broken = await client.post("/embed", json={"inputs": [[9]]})
    assert (broken.status_code, broken.json()["error_type"]) == (424, "Backend")
    assert (await client.post("/embed", json={"inputs": [[8]]})).status_code == 200


@pytest.mark.parametrize("strategy", ["first", "average", "max"])
async def test_words_are_joined_from_their_tokens(client, strategy):
    settings = {"aggregation_strategy": strategy, "ignore_labels": []}
    entities = await answer(client, "/models/tagger", inputs=TEXTS[0], parameters=settings)
    assert "".join(TEXTS[0][each["start"] : each["end"]] for each in entities).replace(" ", "") == "onetwothree"
    edges = {place for each in entities for place in (each["start"], each["end"])}
    assert all(TEXTS[0][edge - 1 : edge] in ("", " ") or TEXTS[0][edge : edge + 1] in ("", " ") for edge in edges)
