"""Cohere's /v2/embed, and vLLM's embeddings as bytes, over fake predictors."""

import base64
import json
import sys

import numpy as np
import pytest

from support.fakes.fake_predictor import vector_of

TEXTS = ["one two three", "The quick brown fox"]
PATH = "/v2/embed"


def unit(predictors, text, dimensions=None):
    vector = vector_of(predictors.tokenizer.encode(text), 8)[:dimensions].astype(np.float64)
    return vector / np.linalg.norm(vector)


async def answer(client, path=PATH, **fields):
    response = await client.post(path, json=fields)
    assert response.status_code == 200, response.text
    return response.json()


async def test_embeddings_come_by_type(client, predictors):
    kinds = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    body = await answer(client, model="embedder", texts=TEXTS, embedding_types=kinds, input_type="classification")
    assert (body["response_type"], body["texts"]) == ("embeddings_by_type", TEXTS)
    num_tokens = sum(len(predictors.tokenizer.encode(text)) for text in TEXTS)
    assert body["meta"]["billed_units"] == {"input_tokens": num_tokens}
    assert list(body["embeddings"]) == kinds
    for index, text in enumerate(TEXTS):
        vector = unit(predictors, text)
        found = {kind: vectors[index] for kind, vectors in body["embeddings"].items()}
        np.testing.assert_allclose(found["float"], vector, rtol=1e-6)
        np.testing.assert_allclose(np.frombuffer(base64.b64decode(found["base64"]), "<f4"), vector, rtol=1e-6)
        np.testing.assert_allclose(found["int8"], vector * 127 / vector.max(), atol=0.51)
        assert [each + 128 for each in found["int8"]] == found["uint8"]
        assert (found["ubinary"], found["binary"]) == ([255], [127])  # all numbers are above zero


async def test_a_bit_is_the_sign_of_its_number(client, predictors):
    predictors.engines["embedder"].numbers = lambda request: np.array([1, -1, -1, 0, 0.5, -0.5, 2, -2], "<f4")
    body = await answer(client, texts=TEXTS[:1], embedding_types=["binary", "ubinary", "int8"])
    assert body["embeddings"]["ubinary"] == [[0b10001010]]
    assert body["embeddings"]["binary"] == [[0b10001010 - 128]]
    np.testing.assert_allclose(
        body["embeddings"]["int8"], [[63.5, -63.5, -63.5, 0, 31.75, -31.75, 127, -127]], atol=0.51
    )


async def test_floats_are_the_default_and_dimensions_are_cut(client, predictors):
    body = await answer(client, texts=TEXTS, output_dimension=4)
    np.testing.assert_allclose(body["embeddings"]["float"][0], unit(predictors, TEXTS[0], 4), rtol=1e-6)
    assert list(body["embeddings"]) == ["float"]


async def test_a_use_has_the_models_prompt(client, predictors):
    for input_type, prompt in (("search_query", "query: "), ("search_document", ""), ("clustering", ""), (None, "")):
        await answer(client, texts=["one"], input_type=input_type)
        sent = predictors.engines["embedder"].submitted[-1].prompt_token_ids
        assert sent == predictors.tokenizer.encode(f"{prompt}one")


async def test_long_texts_are_cut_unless_they_must_not_be(client, predictors):
    long = "one two three four five " * 30
    whole = predictors.tokenizer.encode(long, add_special_tokens=False)
    for settings, kept in (({}, whole[:62]), ({"truncate": "START", "max_tokens": 10}, whole[-8:])):
        await answer(client, texts=[long], **settings)
        assert predictors.engines["embedder"].submitted[-1].prompt_token_ids == [0, *kept, 1]
    for settings in ({}, {"max_tokens": 5}):
        refused = await client.post(PATH, json={"texts": [long], "truncate": "NONE", **settings})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    refused = await client.post(PATH, json={"texts": ["one two three"], "truncate": "NONE", "max_tokens": 2})
    assert refused.status_code == 400


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"texts": []}, 400),
        ({"texts": "a"}, 400),
        ({"texts": [""]}, 400),
        ({"texts": ["a"] * 41}, 400),
        ({"texts": ["a"], "embedding_types": []}, 400),
        ({"texts": ["a"], "embedding_types": ["int4"]}, 400),
        ({"texts": ["a"], "output_dimension": 3}, 400),
        ({"texts": ["a"], "max_tokens": 0}, 400),
        ({"texts": ["a"], "truncate": "MIDDLE"}, 400),
        ({"texts": ["a"], "priority": 11}, 400),
        ({"images": ["data:image/png;base64,"]}, 400),
        ({"texts": ["a"], "model": "classifier"}, 404),
    ],
)
async def test_bad_bodies_are_refused(client, predictors, body, status):
    refused = await client.post(PATH, json=body)
    assert (refused.status_code, set(refused.json())) == (status, {"error"}), refused.text
    assert not predictors.engines["embedder"].submitted


def read(content, metadata):
    types = {"float32": "f4", "float16": "f2"}
    orders = {"little": "<", "big": ">", "native": "<" if sys.byteorder == "little" else ">"}
    for each in metadata["data"]:
        piece = content[each["start"] : each["end"]]
        if each["embed_dtype"] == "bfloat16":
            bits = np.frombuffer(piece, f"{orders[each['endianness']]}u2").astype(np.uint32) << 16
            yield bits.view(np.float32).reshape(each["shape"])
        else:
            yield np.frombuffer(piece, orders[each["endianness"]] + types[each["embed_dtype"]]).reshape(each["shape"])


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-6), ("float16", 1e-3), ("bfloat16", 4e-3), (None, 1e-6)]
)
@pytest.mark.parametrize("endianness", ["little", "big", "native", None])
async def test_bytes_have_the_type_and_order_that_is_asked_for(client, predictors, path, dtype, tolerance, endianness):
    fields = {"input": TEXTS, "model": "embedder", "embed_dtype": dtype, "endianness": endianness}
    answer = await client.post(path, json={**fields, "encoding_format": "bytes"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/octet-stream"), answer.text
    metadata = json.loads(answer.headers["metadata"])
    for found, text in zip(read(answer.content, metadata), TEXTS, strict=True):
        np.testing.assert_allclose(found.astype(np.float64), unit(predictors, text), rtol=tolerance)
    assert metadata["usage"]["prompt_tokens"] == sum(len(predictors.tokenizer.encode(text)) for text in TEXTS)
    only = await client.post(path, json={**fields, "encoding_format": "bytes_only"})
    assert (only.content, "metadata" in only.headers) == (answer.content, False)
    coded = (await client.post(path, json={**fields, "encoding_format": "base64"})).json()["data"]
    member = "data" if path == "/pooling" else "embedding"
    assert b"".join(base64.b64decode(each[member]) for each in coded) == answer.content


async def test_numbers_of_tokens_have_their_shapes(client, predictors):
    answer = await client.post(
        "/pooling", json={"input": TEXTS, "model": "embedder", "task": "token_embed", "encoding_format": "bytes"}
    )
    shapes = [each["shape"] for each in json.loads(answer.headers["metadata"])["data"]]
    assert shapes == [[len(predictors.tokenizer.encode(text)), 8] for text in TEXTS]


async def test_numbers_beyond_a_type_are_its_largest(client, predictors):
    predictors.engines["embedder"].numbers = lambda request: np.array([1e30, -1e30, 3.4e38, *[1.0] * 5], "<f4")
    for dtype, largest in (("float16", 65504.0), ("bfloat16", 3.3895e38)):
        fields = {"input": "a", "model": "embedder", "normalize": False, "embed_dtype": dtype}
        answer = await client.post("/pooling", json={**fields, "encoding_format": "bytes"})
        (found,) = read(answer.content, json.loads(answer.headers["metadata"]))
        assert np.isfinite(found).all()
        assert float(found[2]) == pytest.approx(largest, rel=1e-3)


async def test_metadata_that_no_header_takes_is_refused(client, predictors):
    kserve = predictors.kserve.generation
    kserve.limits = kserve.limits.model_copy(update={"max_inputs": 400})
    refused = await client.post(
        "/pooling", json={"input": ["a"] * 400, "model": "embedder", "encoding_format": "bytes"}
    )
    assert (refused.status_code, "bytes_only" in refused.text) == (400, True), refused.text
