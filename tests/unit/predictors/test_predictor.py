"""`Predictor` beside transformers' pipelines, its batches, and its errors."""

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from transformers import pipeline

from rayinfer import Predictor
from rayinfer.errors import (
    ConfigError,
    EngineDead,
    InvalidParameter,
    ModelLoadError,
    NotSupported,
    PromptTooLong,
    RequestFailed,
)
from support.tiny_models.tiny_checkpoints import make_tiny_llama
from support.tiny_models.tiny_encoders import make_tiny_encoder, save_sentence_layout

TEXTS = [
    "Anna Smith lives in Paris and works at Acme.",
    "the quick brown foxes jumps",
    "a",
    "an old man saw children by the sea house, slowed while seven wizards make brew for the evil queen",
]


@pytest.fixture
def embedder(build, tmp_path):
    make_tiny_encoder(tmp_path, "Bert", "Model")
    save_sentence_layout(tmp_path, prompts={"query": "the queen "})
    with Predictor(str(tmp_path)) as predictor:
        yield predictor


def test_classes_are_those_of_the_pipeline(build, tmp_path):
    make_tiny_encoder(tmp_path, "Bert", "ForSequenceClassification")
    classifier = pipeline("text-classification", model=str(tmp_path))
    with Predictor(str(tmp_path)) as predictor:
        for text, scores in zip(TEXTS, predictor.classify(TEXTS), strict=True):
            expected = classifier(text, top_k=None)
            assert [score.label for score in scores] == [item["label"] for item in expected]
            assert [score.score for score in scores] == pytest.approx([item["score"] for item in expected], abs=1e-5)
        assert predictor.classify(TEXTS[0]) == predictor.classify([TEXTS[0]])[0]
        assert predictor.predict_class(TEXTS) == [item["label"] for item in classifier(TEXTS)]
        assert predictor.predict_proba("a").shape == (3,)
        pair = {"text": TEXTS[0], "text_pair": TEXTS[1]}
        assert predictor.predict_proba((TEXTS[0], TEXTS[1])).max() == pytest.approx(classifier(pair)["score"], abs=1e-5)
        with pytest.raises(NotSupported, match="token_classify is not for this model"):
            predictor.token_classify("a")


@pytest.mark.parametrize("aggregation", ["none", "simple", "first", "average", "max"])
def test_entities_are_those_of_the_pipeline(aggregation, build, tmp_path):
    make_tiny_encoder(tmp_path, "Bert", "ForTokenClassification")
    tagger = pipeline("token-classification", model=str(tmp_path), aggregation_strategy=aggregation)
    with Predictor(str(tmp_path)) as predictor:
        num_entities = 0
        for text, entities in zip(TEXTS, predictor.token_classify(TEXTS, aggregation=aggregation), strict=True):
            expected = tagger(text)
            num_entities += len(expected)
            found = [(entity.label, entity.word, entity.start, entity.end, entity.index) for entity in entities]
            key = "entity" if aggregation == "none" else "entity_group"
            assert found == [(e[key], e["word"], e["start"], e["end"], e.get("index")) for e in expected]
            assert [e.score for e in entities] == pytest.approx([float(e["score"]) for e in expected], abs=1e-5)
        assert num_entities > 5


def test_a_reranker_scores_documents_and_pairs(build, tmp_path):
    make_tiny_encoder(tmp_path, "Bert", "ForSequenceClassification", id2label=None, num_labels=1)
    with Predictor(str(tmp_path)) as predictor:
        scores = predictor.score("a queen", TEXTS)
        assert scores == pytest.approx(predictor.score([("a queen", text) for text in TEXTS]))
        raw = predictor.score("a queen", TEXTS, raw=True)
        assert scores == pytest.approx(1 / (1 + np.exp(-raw)), abs=1e-6)
        assert predictor.predict(("a queen", TEXTS[0]), raw=True) == pytest.approx(raw[:1], abs=1e-5)
        assert predictor.predict(("a queen", TEXTS[0])) == pytest.approx(scores[:1], abs=1e-5)
        queries = ["a queen", "an old man", "a", "the"]
        assert predictor.score(queries, TEXTS) == pytest.approx(
            [predictor.score(query, [text])[0] for query, text in zip(queries, TEXTS, strict=True)], abs=1e-6
        )
        with pytest.raises(InvalidParameter, match="as many as the queries, 4, got 1"):
            predictor.score(queries, TEXTS[:1])


def test_embeddings_are_unit_vectors_of_prompted_texts(embedder):
    vectors = embedder.embed(TEXTS)
    assert vectors.shape == (4, 48)
    assert np.linalg.norm(vectors, axis=-1) == pytest.approx([1] * 4)
    assert embedder.embed(TEXTS[1]) == pytest.approx(vectors[1], abs=1e-6)
    assert embedder.embed("old", prompt_name="query") == pytest.approx(embedder.embed("the queen old"), abs=1e-6)
    cut = embedder.embed(TEXTS, dimensions=10)
    assert np.linalg.norm(cut, axis=-1) == pytest.approx([1] * 4)
    assert embedder.embed("a", normalize=False) == pytest.approx(embedder.predict("a", raw=True), abs=1e-6)
    assert embedder.score("a", TEXTS)[2] == pytest.approx(1)


def test_numbers_are_those_of_a_service(build, tmp_path):
    make_tiny_encoder(tmp_path, "Bert", "Model")
    save_sentence_layout(tmp_path, prompts={"query": "the queen "}, default_prompt_name="query")
    with Predictor(str(tmp_path)) as predictor:
        assert np.linalg.norm(predictor.predict("old")) == pytest.approx(1)
        assert predictor.predict("old") == pytest.approx(predictor.embed("old"), abs=1e-6)
        assert predictor.predict_batch(["old"])[0] == pytest.approx(predictor.embed("the queen old", prompt_name=""))
    make_tiny_encoder(tmp_path / "classifier", "Bert", "ForSequenceClassification")
    with Predictor(str(tmp_path / "classifier")) as predictor:
        assert predictor.predict("a") == pytest.approx(predictor.predict_proba("a"), abs=1e-6)
        assert predictor.predict("a", raw=True).sum() != pytest.approx(1)


def test_a_predictor_says_what_it_takes_and_returns(embedder):
    assert [(spec.name, spec.datatype, spec.shape) for spec in embedder.inputs] == [("text", "BYTES", (-1,))]
    assert [(spec.name, spec.datatype, spec.shape) for spec in embedder.outputs] == [("embedding", "FP32", (-1, 48))]
    shown = repr(embedder)
    assert "tasks: embed" in shown
    assert "inputs: text BYTES[-1]; outputs: embedding FP32[-1, 48]" in shown
    embedder.close()
    assert "closed" in repr(embedder)


def test_lists_run_in_batches_of_tokens(build, tmp_path):
    make_tiny_encoder(tmp_path, "Bert", "Model")
    texts = TEXTS * 5
    with Predictor(str(tmp_path), batch_size=24, deterministic=True) as small, Predictor(str(tmp_path)) as large:
        assert small.embed(texts) == pytest.approx(large.embed(texts), abs=1e-5)
        assert (small.embed(texts)[:4] == small.embed(TEXTS)).all()


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ([], InvalidParameter, "must not be empty"),
        (None, InvalidParameter, "must be a list"),
        ("", InvalidParameter, "input 0 must not be empty"),
        (["a", ""], InvalidParameter, "input 1 must not be empty"),
        (["a", None], InvalidParameter, "input 1 must be a text"),
        (["a", 3], InvalidParameter, "input 1 must be a text"),
        (["a " * 80], PromptTooLong, "input 0 has 82 tokens, more than the model's 64"),
        (["\ud800"], InvalidParameter, "lone surrogate"),
        (["a", "a " * 80, "\ud800"], PromptTooLong, "input 1 has 82 tokens"),
        (["a"] * 100 + ["a " * 80], PromptTooLong, "input 100 has 82 tokens"),
        (["a"] * 100 + [None, "a " * 80], InvalidParameter, "input 100 must be a text"),
    ],
)
def test_wrong_inputs_are_refused(inputs, error, message, embedder):
    with pytest.raises(error, match=message):
        embedder.embed(inputs)


def test_long_texts_are_cut_on_demand(embedder):
    assert embedder.embed("a " * 80, truncate=True) == pytest.approx(embedder.embed("a " * 62), abs=1e-6)


def test_texts_of_any_number_and_size_are_each_embedded_as_alone(build, tmp_path):
    make_tiny_encoder(tmp_path, "Bert", "Model")
    texts = ["the quick fox " * 3_000, *TEXTS * 20, "fox" * 70_000, *TEXTS[:3]]
    with Predictor(str(tmp_path), deterministic=True) as predictor:
        for text, vector in zip(texts, predictor.embed(texts, truncate=True), strict=True):
            assert (predictor.embed(text, truncate=True) == vector).all()


def test_wrong_settings_of_a_call_are_refused(embedder):
    with pytest.raises(InvalidParameter, match="prompt_name 'passage' is not one of the model's: query"):
        embedder.embed("a", prompt_name="passage")
    with pytest.raises(InvalidParameter, match="dimensions"):
        embedder.embed("a", dimensions=49)
    with pytest.raises(InvalidParameter, match="documents"):
        embedder.score([("a", "b")], ["c"])
    with pytest.raises(NotSupported, match="classify is not for this model, which does embed"):
        embedder.classify(["a"])


def test_a_closed_predictor_computes_nothing(embedder):
    embedder.close()
    embedder.close()
    with pytest.raises(EngineDead, match="closed"):
        embedder.embed("a")


def test_numbers_that_are_not_finite_are_an_error(build, tmp_path):
    make_tiny_encoder(tmp_path, "Bert", "Model")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["embeddings.LayerNorm.weight"].fill_(float("nan"))
    save_file(tensors, tmp_path / "model.safetensors")
    with Predictor(str(tmp_path)) as predictor, pytest.raises(RequestFailed, match="not finite"):
        predictor.embed("a")


def test_a_model_that_generates_is_for_the_llm(build, tmp_path):
    make_tiny_llama(tmp_path)
    with pytest.raises(ModelLoadError, match="use LLM"):
        Predictor(str(tmp_path))


@pytest.mark.parametrize("settings", [{"batch_size": 0}, {"batch_size": 1.5}, {"device": "tpu"}, {"dtype": "int3"}])
def test_wrong_settings_are_refused(settings, build, tmp_path):
    make_tiny_encoder(tmp_path, "Bert", "Model")
    with pytest.raises(ConfigError):
        Predictor(str(tmp_path), **settings)
