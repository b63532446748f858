"""Engines whose ranks lie on several nodes: what one process answers, and one death for all of them.

The third node lacks the model's folder: what runs there gets its files from the second.
"""

import math
import time

import httpx
import pytest

from support.cluster.service_config import built_config, model_args
from support.services.polling import wait_until
from support.tiny_models.tiny_checkpoints import make_tiny_llama

pytestmark = pytest.mark.cluster
PROMPTS = ["Once upon a time", "The quick brown fox", "a", "Numbers: 1 2 3 4 5 6 7 8 9 10 11 12"]
SPREAD = {"placement_group_strategy": "STRICT_SPREAD"}
WORKERS = (2, 3)


@pytest.fixture(scope="module")
def service(nodes, tiny_model):
    nodes.deploy(
        built_config(
            model_args(tiny_model, "one", node_labels=[{"place": "second"}]),
            model_args(tiny_model, "tensor", tensor_parallel_size=2, **SPREAD),
            model_args(tiny_model, "stages", pipeline_parallel_size=2, **SPREAD),
        )
    )
    nodes.wait_ready(2)
    return nodes


def answers_of(service, model):
    answers = []
    for prompt in PROMPTS:
        body = {"model": model, "prompt": prompt, "max_tokens": 32, "temperature": 0, "logprobs": 3, "ignore_eos": True}
        answer = httpx.post(f"{service.url(2)}/v1/completions", json=body, timeout=120, trust_env=False)
        assert answer.status_code == 200, answer.text
        answers.append(answer.json()["choices"][0])
    return answers


def ranks_on(service, node):
    titles = service.processes(node, "ray::").values()
    return sum("EngineActor" in title or "RankActor" in title for title in titles)


@pytest.mark.parametrize("model", ["tensor", "stages"])
def test_ranks_on_two_nodes_answer_like_one_process(model, service):
    greatest = 0.0
    for alone, spread in zip(answers_of(service, "one"), answers_of(service, model), strict=True):
        assert spread["text"] == alone["text"]
        pairs = zip(spread["logprobs"]["token_logprobs"], alone["logprobs"]["token_logprobs"], strict=True)
        differences = [math.fabs(ours - theirs) for ours, theirs in pairs]
        greatest = max(greatest, *differences)
    print(f"{model}: log probabilities differ by {greatest:.1e} at most")
    assert greatest <= 1e-4


def test_engines_of_two_ranks_have_one_on_each_worker(service):
    assert [ranks_on(service, node) for node in WORKERS] == [3, 2]


def test_a_node_without_the_model_has_fetched_it_once(service):
    received = list((service.folder / "cache-3" / "models" / "nodes").glob("*/whole/*/model.safetensors"))
    assert len(received) == 1
    assert not (service.folder / "cache-2" / "models" / "nodes").exists()


def test_weights_change_by_a_command_on_a_node_that_lacks_them(service, tiny_model):
    before = answers_of(service, "stages")
    other = make_tiny_llama(tiny_model.parent / "other", seed=1, max_position_embeddings=2048)
    assert "version 1" in service.rayinfer("reload", str(other), "--model", "stages", node=3)
    assert [each["text"] for each in answers_of(service, "stages")] != [each["text"] for each in before]
    listed = service.rayinfer("cache", "ls", node=3)
    assert f"{other}, in use" in listed


def test_an_engine_ends_with_its_rank_on_another_node_and_returns(service):
    before = service.processes(title="RankActor")
    assert len(before) == 2
    engines = set(service.processes(title="EngineActor"))
    node = next(node for node in WORKERS if service.processes(node, "RankActor"))
    num_killed, killed_s = service.kill(node, "RankActor"), time.monotonic()
    assert num_killed >= 1
    wait_until(lambda: len(engines & set(service.processes(title="EngineActor"))) == len(engines) - num_killed, 60.0)
    ended_s = time.monotonic() - killed_s
    wait_until(lambda: len(service.processes(title="RankActor")) == 2, 120.0)
    service.wait_ready(2)
    alone, again = answers_of(service, "one"), answers_of(service, "tensor")
    print(f"ended after {ended_s:.1f} s, answers again after {time.monotonic() - killed_s:.1f} s")
    assert [each["text"] for each in again] == [each["text"] for each in alone]


@pytest.mark.faults
def test_an_engine_ends_when_the_node_of_a_rank_is_cut_off(service):
    before = set(service.processes(2, "EngineActor"))  # among them the engine of one rank
    cut = 3
    service.network.cut(cut)
    cut_s = time.monotonic()
    wait_until(lambda: len(before & set(service.processes(2, "EngineActor"))) == 1, 120.0)
    print(f"ended after {time.monotonic() - cut_s:.1f} s")
    service.kill(cut)
    service.network.mend(cut)
    service.start(cut)
    wait_until(lambda: len(service.processes(title="RankActor")) == 2, 240.0)
    service.wait_ready(2)
    alone, again = answers_of(service, "one"), answers_of(service, "tensor")
    assert [each["text"] for each in again] == [each["text"] for each in alone]
