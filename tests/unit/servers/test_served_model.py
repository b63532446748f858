"""Lookup of models by name and task, and requests for tasks that a model does not do."""

from dataclasses import replace

import pytest

from rayinfer.error_kinds import error_kind
from rayinfer.errors import InvalidParameter, NotReady, TaskNotServed, UnknownModel
from rayinfer.predictions import PredictorDescription
from rayinfer.servers.served_model import find_model
from support.fakes.fake_generator import FakeGenerator
from support.fakes.fake_predictor import CLASSIFIER, EMBEDDER, RERANKER


class Described(FakeGenerator):
    """Generator whose model does the tasks of a predictor."""

    def __init__(self, predictor: PredictorDescription) -> None:
        super().__init__()
        self.predictor = predictor

    def describe(self):
        return replace(super().describe(), predictor=self.predictor)


@pytest.fixture
def served(models):
    """A language model, an embedder, a reranker and a classifier."""
    tiny = models["org/tiny"]
    for name, description in (("embedder", EMBEDDER), ("reranker", RERANKER), ("classifier", CLASSIFIER)):
        models[name] = replace(tiny, name=name, generator=Described(description))
    return models


@pytest.mark.parametrize(
    ("tasks", "name"),
    [
        (("generate",), "org/tiny"),
        (("embed",), "embedder"),
        (("token_embed",), "embedder"),
        (("score", "embed"), "reranker"),
        (("classify",), "classifier"),
    ],
)
def test_without_a_name_the_only_model_that_does_the_task_is_meant(served, tasks, name):
    for given in (None, "dummy", name):
        assert find_model(served, given, *tasks).name == name


def test_a_later_task_will_do_where_no_model_does_the_first(served):
    del served["reranker"]
    assert find_model(served, None, "score", "embed").name == "embedder"


def test_several_that_do_the_task_are_listed(served):
    served["second"] = replace(served["embedder"], name="second")
    with pytest.raises(InvalidParameter, match="more than one: embedder, second") as caught:
        find_model(served, None, "embed")
    assert caught.value.code == "model_required"


def test_a_task_that_no_model_does_names_the_paths_that_are_served(served):
    with pytest.raises(TaskNotServed, match=r"No model here does classification of tokens.*/v1/embeddings"):
        find_model(served, None, "token_classify")
    with pytest.raises(TaskNotServed, match=r"The model 'org/tiny' does no embeddings.*/v1/chat/completions"):
        find_model(served, "org/tiny", "embed")
    with pytest.raises(TaskNotServed, match=r"The model 'reranker' does no generation of text.*/rerank") as caught:
        find_model(served, "reranker", "generate")
    assert (caught.value.param, error_kind(caught.value).status) == ("model", 404)
    with pytest.raises(UnknownModel):
        find_model(served, "none", "embed")


def test_models_that_are_not_described_yet_may_do_any_task(served, generator):
    generator.not_ready = "starting"
    assert find_model(served, "org/tiny", "embed").name == "org/tiny"
    assert find_model(served, None, "generate").name == "org/tiny"
    with pytest.raises(InvalidParameter, match="org/tiny, embedder"):
        find_model(served, None, "embed")
    with pytest.raises(NotReady):
        find_model({}, None, "embed")


CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT | {"model": "embedder"}),
        ("/v1/completions", {"prompt": "hi", "model": "embedder"}),
        ("/models/embedder/generate", {"inputs": "hi"}),
        ("/models/embedder/api", {"prompts": ["hi"]}),
    ],
)
async def test_a_model_that_does_not_generate_says_what_it_serves(client, served, path, body):
    method = client.put if path.endswith("api") else client.post
    response = await method(path, json=body)
    assert (response.status_code, "/v1/embeddings" in response.text) == (404, True), response.text
    answered = await client.post("/v1/chat/completions", json=CHAT)  # the only model that generates
    assert answered.json()["model"] == "org/tiny"


async def test_cards_say_what_models_do(client, served, generator):
    cards = {card["id"]: card["tasks"] for card in (await client.get("/v1/models")).json()["data"]}
    assert cards["org/tiny"] == ["generate"]
    assert cards["embedder"] == ["embed", "token_embed"]
    generator.not_ready = "starting"
    assert (await client.get("/v1/models/org/tiny")).json()["tasks"] is None
