"""Bad inputs of predictors' paths: each has its status and its protocol's form, and a good request works after."""

import pytest

LONG = "one two three four five " * 30
OPENAI, TEI, KSERVE = "openai", "tei", "kserve"

EMBEDDINGS = [
    *(({"input": value}, 400) for value in ("", [], [""], ["a", ""], None, 5, {}, [[]], [[], [1]], ["a", 1], [1, "a"])),
    *(({"input": value}, 400) for value in ([True], [-1], [1.5], [10**6], [[1], "a"], [[10**9]], [["a"]], [None])),
    *(({"input": "a", "dimensions": value}, 400) for value in (0, -1, 3, 9, "2", 1.5, True)),
    *(({"input": "a", "encoding_format": value}, 400) for value in ("int8", "", 1)),
    *(({"input": "a", "truncate_prompt_tokens": value}, 400) for value in (0, -2, 65, "a")),
    *(({"input": "a", "priority": value}, 400) for value in (11, -11, "1")),
    *(({"input": "a", "cache_salt": value}, 400) for value in ("", "a/b", 1)),
    ({"input": "a", "prompt_name": "none"}, 400),
    ({"input": "a", "truncation_side": "middle"}, 400),
    ({"input": "a", "user": 1}, 400),
    ({"input": LONG}, 400),
    ({"input": ["a"] * 41}, 400),
    ({"input": [[1] * 65]}, 400),
    ({}, 400),
    ({"input": "a", "model": "none"}, 404),
    ({"input": "a", "model": "org/tiny"}, 404),
    ({"input": "a", "model": "reranker"}, 404),
    ({"input": "a", "model": 5}, 400),
]
POOLING = [
    ({"input": "a", "task": "embed"}, 200),
    ({"input": "a", "task": "generate"}, 400),
    ({"input": "a", "task": "classify", "model": "embedder"}, 404),
    *(({"input": "a", "encoding_format": value}, 400) for value in ("byte", 1)),
    *(({"input": "a", "embed_dtype": value}, 400) for value in ("float64", "fp8_e4m3", 16)),
    ({"input": "a", "endianness": "middle"}, 400),
    ({"input": "a", "model": "images"}, 404),
]
CLASSIFY = [({"input": ""}, 400), ({"input": LONG}, 400), ({"input": "a", "model": "images"}, 404), ({}, 400)]
SCORES = [
    *(({"text_1": value, "text_2": "a"}, 400) for value in ("", [], 5, [""], ["a", "b"], {}, [None])),
    *(({"text_1": "a", "text_2": value}, 400) for value in ("", [], 5, ["a", ""], None, ["a"] * 41)),
    ({}, 400),
    ({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, 400),
    ({"text_1": "a", "text_2": LONG}, 400),
    ({"text_1": "a", "text_2": "b", "model": "classifier"}, 404),
]
RERANKS = [
    *(({"query": "a", "documents": value}, 400) for value in ([], "a", [1], [{}], [{"text": 1}], ["a"] * 41, [None])),
    *(({"query": value, "documents": ["a"]}, 400) for value in ("", None, 5, ["a"])),
    *(({"query": "a", "documents": ["a"], "top_n": value}, 400) for value in (0, -1, "1", 1.5)),
    ({"query": "a", "documents": ["a"], "max_tokens_per_doc": 0}, 400),
    ({"documents": ["a"]}, 400),
    ({"query": "a", "documents": [LONG]}, 400),
    ({"query": "a", "documents": ["a"], "model": "none"}, 404),
]
TEI_EMBED = [
    *(({"inputs": value}, 422) for value in ("", [], [""], None, 5, {}, [[]], ["a", 1], [10**6], [True])),
    *(({"inputs": "a", "dimensions": value}, 422) for value in (0, 3, 9, "2")),
    *(({"inputs": "a", name: value}, 422) for name in ("normalize", "truncate") for value in ("x", 1)),
    ({"inputs": "a", "truncation_direction": "up"}, 422),
    ({"inputs": "a", "prompt_name": "none"}, 422),
    ({"inputs": LONG}, 422),
    ({"inputs": ["a"] * 41}, 422),
    ({}, 422),
]
TEI_PREDICT = [
    *(({"inputs": value}, 422) for value in ("", [], None, 5, {}, ["a", "b", "c"], [["a"], "b"], [[]], [["a", 1]])),
    ({"inputs": LONG}, 422),
    ({"inputs": [["a"]] * 41}, 422),
    ({"inputs": "a", "raw_scores": "x"}, 422),
    ({}, 422),
]
TEI_RERANK = [
    *(({"query": "a", "texts": value}, 422) for value in ([], "a", [1], ["a"] * 41, [LONG])),
    *(({"query": value, "texts": ["a"]}, 422) for value in ("", None, 5)),
]
SIMILARITY = [
    ({"inputs": "a"}, 422),
    ({"inputs": {"source_sentence": "a", "sentences": []}}, 422),
    ({"inputs": {"source_sentence": "", "sentences": ["a"]}}, 422),
    ({"inputs": {"source_sentence": "a", "sentences": ["a", ""]}}, 422),
    ({"inputs": {"sentences": ["a"]}}, 422),
]
TAGGED = [
    ({"inputs": ""}, 422),
    ({"inputs": LONG}, 422),
    ({"inputs": [5]}, 422),
    ({"inputs": "a", "parameters": {"aggregation_strategy": "most"}}, 422),
    ({"inputs": "a", "parameters": {"ignore_labels": [5]}}, 422),
]
TOKENS = [({"inputs": [5]}, 422), ({"inputs": []}, 422), ({"inputs": "a", "prompt_name": "none"}, 422)]
DECODED = [({"ids": value}, 422) for value in ("a", [], [[]], [10**6], ["a"], None, [[1], 2])]


def text(data, shape, name="text", datatype="BYTES"):
    return {"inputs": [{"name": name, "datatype": datatype, "shape": shape, "data": data}]}


INFER = [
    (text([], [0]), 400),
    (text([""], [1]), 400),
    (text(["a", "b"], [1, 2]), 400),
    (text(["a"], [1], name="other"), 400),
    (text([1], [1], datatype="INT64"), 400),
    (text([LONG], [1]), 400),
    (text(["a"] * 41, [41]), 400),
    (text(["a"], [1]) | {"outputs": [{"name": "none"}]}, 400),
    (text(["a"], [1]) | {"parameters": {"nonsense": 1}}, 400),
    (text(["a"], [1]) | {"parameters": {"dimensions": 3}}, 400),
    ({"inputs": []}, 400),
]
PAIRS = [(text(["a"], [1], "text_pairs"), 400), (text(["a", "b", "c"], [1, 3], "text_pairs"), 400)]
PIXELS = [
    (text([0] * 12, [3, 2, 2], "pixels", "UINT8"), 400),
    (text([0] * 12, [2, 6], "pixels", "UINT8"), 400),
    (text([0] * 12, [2, 2, 3], "pixels", "FP32"), 400),
    (text([0] * 12, [1, 2, 2, 3], "pixels", "INT64"), 400),
    (text([0] * 12, [4, 1, 1, 3], "pixels", "UINT8"), 400),
    (text(["no image"], [1], "image"), 400),
]
INSTANCES = [({"instances": value}, 400) for value in ([], "a", [5], [""], [{}], [["a", "b"]], [LONG])]

GOOD = {
    "/v1/embeddings": {"input": "a"},
    "/pooling": {"input": "a"},
    "/classify": {"input": "a"},
    "/score": {"text_1": "a", "text_2": "b"},
    "/rerank": {"query": "a", "documents": ["b"]},
    "/v2/rerank": {"query": "a", "documents": ["b"]},
    "/models/reranker/rerank": {"query": "a", "texts": ["b"]},
    "/embed": {"inputs": "a"},
    "/embed_all": {"inputs": "a"},
    "/predict": {"inputs": "a"},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
    "/models/tagger": {"inputs": "a"},
    "/models/embedder/tokenize": {"inputs": "a"},
    "/models/embedder/decode": {"ids": [1]},
    "/v2/models/embedder/infer": text(["a"], [1]),
    "/v2/models/reranker/infer": text(["a", "b"], [1, 2], "text_pairs"),
    "/v2/models/images/infer": text([0] * 12, [1, 2, 2, 3], "pixels", "UINT8"),
    "/v1/models/embedder:predict": {"instances": ["a"]},
}
TABLE = {
    "/v1/embeddings": (OPENAI, EMBEDDINGS),
    "/pooling": (OPENAI, [*POOLING, *((body, status) for body, status in EMBEDDINGS[:19])]),
    "/classify": (OPENAI, CLASSIFY),
    "/score": (OPENAI, SCORES),
    "/rerank": (OPENAI, RERANKS),
    "/v2/rerank": (OPENAI, RERANKS),
    "/models/reranker/rerank": (TEI, TEI_RERANK),
    "/embed": (TEI, TEI_EMBED),
    "/embed_all": (TEI, TEI_EMBED),
    "/predict": (TEI, TEI_PREDICT),
    "/similarity": (TEI, SIMILARITY),
    "/models/tagger": (TEI, TAGGED),
    "/models/embedder/tokenize": (TEI, TOKENS),
    "/models/embedder/decode": (TEI, DECODED),
    "/v2/models/embedder/infer": (KSERVE, INFER),
    "/v2/models/reranker/infer": (KSERVE, PAIRS),
    "/v2/models/images/infer": (KSERVE, PIXELS),
    "/v1/models/embedder:predict": (KSERVE, INSTANCES),
}


def check_form(form, body):
    if form == OPENAI:
        assert body["error"].keys() == {"message", "type", "param", "code"}
        return body["error"]["message"]
    assert body.keys() == ({"error", "error_type"} if form == TEI else {"error"})
    if form == TEI:
        assert body["error_type"] == "Validation"
    return body["error"]


@pytest.mark.parametrize("path", TABLE)
async def test_bad_inputs_have_their_status_and_form(client, path):
    """One application answers all of a path's cases: each leaves it as it was."""
    form, cases = TABLE[path]
    named = {"model": "embedder"} if path == "/pooling" else {}
    for body, status in cases:
        response = await client.post(path, json=named | body if isinstance(body, dict) else body)
        assert response.status_code == status, (body, response.text)
        if status != 200:
            assert check_form(form, response.json())
    good = await client.post(path, json=named | GOOD[path])
    assert good.status_code == 200, good.text


@pytest.mark.parametrize("path", ["/v1/embeddings", "/score", "/v1/rerank", "/classify", "/embed", "/predict"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"input": NaN}', b'{"inputs": "\xff"}'])
async def test_bodies_that_are_no_json_objects_are_400(client, path, content):
    response = await client.post(path, content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text


async def test_what_a_model_does_not_do_names_its_paths(client):
    chat = await client.post(
        "/v1/chat/completions", json={"model": "embedder", "messages": [{"role": "user", "content": "hi"}]}
    )
    assert (chat.status_code, "/v1/embeddings" in chat.text) == (404, True)
    embedding = await client.post("/v1/embeddings", json={"model": "org/tiny", "input": "a"})
    assert (embedding.status_code, embedding.json()["error"]["code"]) == (404, "task_not_served")
    generate = await client.post("/v2/models/embedder/generate", json={"text_input": "a"})
    assert (generate.status_code, "generates no text" in generate.text) == (404, True)


TEXT_TENSOR = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}

# A path for each task, with a body that a model of another task could not answer.
OTHER_TASKS = [
    ("/v1/embeddings", {"input": "a"}, "embedder"),
    ("/pooling", {"input": "a", "task": "embed"}, "embedder"),
    ("/v2/embed", {"texts": ["a"]}, "embedder"),
    ("/classify", {"input": "a"}, "classifier"),
    ("/score", {"text_1": "a", "text_2": "b"}, "reranker embedder"),
    ("/v1/rerank", {"query": "a", "documents": ["b"]}, "reranker embedder"),
    ("/v1/images/classify", {"image": "iVBORw0KGgo="}, "images"),
    ("/v1/completions", {"prompt": "a"}, "org/tiny"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "org/tiny"),
    ("/tokenize", {"prompt": "a"}, "org/tiny embedder classifier reranker tagger"),
    ("/models/{}/embed", {"inputs": "a"}, "embedder"),
    ("/models/{}/embed_all", {"inputs": "a"}, "embedder"),
    ("/models/{}/predict", {"inputs": "a"}, "classifier"),
    ("/models/{}/rerank", {"query": "a", "texts": ["b"]}, "reranker embedder"),
    ("/models/{}/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}, "embedder"),
    ("/models/{}/generate", {"inputs": "a"}, "org/tiny"),
    ("/models/{}/tokenize", {"inputs": "a"}, "org/tiny embedder classifier reranker tagger"),
    ("/v2/models/{}/infer", {"inputs": [TEXT_TENSOR]}, "org/tiny embedder classifier reranker images"),
    ("/v2/models/{}/generate", {"text_input": "a"}, "org/tiny"),
    ("/v1/models/{}:predict", {"instances": ["a"]}, "org/tiny embedder classifier reranker images"),
]


@pytest.mark.parametrize(("path", "body", "able"), OTHER_TASKS)
async def test_a_task_that_a_model_does_not_do_has_one_status_everywhere(client, predictors, path, body, able):
    others = predictors.models.keys() - set(able.split())
    assert others
    for name in others:
        refused = await client.post(path.format(name), json=body | ({} if "{}" in path else {"model": name}))
        assert refused.status_code == 404, (name, refused.text)
