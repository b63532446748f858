"""Engines whose ranks lie on several nodes: what one process answers, and one death for all of them."""

import math
import time

import httpx
import pytest

from support.cluster.node_network import NodeNetwork
from support.cluster.ray_nodes import RayNodes
from support.cluster.service_config import built_config, model_args
from support.services.polling import wait_until
from support.tiny_models.tiny_checkpoints import make_tiny_llama

pytestmark = pytest.mark.cluster
PROMPTS = ["Once upon a time", "The quick brown fox", "a", "Numbers: 1 2 3 4 5 6 7 8 9 10 11 12"]
SPREAD = {"placement_group_strategy": "STRICT_SPREAD"}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    model = make_tiny_llama(folder / "model", max_position_embeddings=2048)
    with NodeNetwork(3) as network, RayNodes(network, folder / "ray-nodes") as nodes:
        nodes.deploy(
            built_config(
                model_args(model, "one"),
                model_args(model, "tensor", tensor_parallel_size=2, **SPREAD),
                model_args(model, "stages", pipeline_parallel_size=2, **SPREAD),
            )
        )
        nodes.wait_ready(2)
        yield nodes


def answers_of(nodes, model):
    answers = []
    for prompt in PROMPTS:
        body = {"model": model, "prompt": prompt, "max_tokens": 32, "temperature": 0, "logprobs": 3, "ignore_eos": True}
        answer = httpx.post(f"{nodes.url(2)}/v1/completions", json=body, timeout=60, trust_env=False)
        assert answer.status_code == 200, answer.text
        answers.append(answer.json()["choices"][0])
    return answers


def nodes_of_ranks(nodes, number):
    """Return on which nodes an engine's processes run, by the deployment's number."""
    return [node for node in (2, 3) for title in nodes.processes(node, "ray::") if title and number in title]


@pytest.mark.parametrize("model", ["tensor", "stages"])
def test_ranks_on_two_nodes_answer_like_one_process(model, nodes):
    for alone, spread in zip(answers_of(nodes, "one"), answers_of(nodes, model), strict=True):
        assert spread["text"] == alone["text"]
        pairs = zip(spread["logprobs"]["token_logprobs"], alone["logprobs"]["token_logprobs"], strict=True)
        assert all(math.isclose(ours, theirs, abs_tol=1e-4) for ours, theirs in pairs)


def test_each_engine_of_two_ranks_uses_both_workers(nodes):
    for node in (2, 3):
        titles = nodes.processes(node, "ray::").values()
        num_processes = sum("EngineActor" in title or "RankActor" in title for title in titles)
        assert num_processes >= 2, titles


def test_an_engine_ends_with_its_rank_on_another_node_and_returns(nodes):
    before = nodes.processes(title="RankActor")
    assert len(before) == 2
    engines = set(nodes.processes(title="EngineActor"))
    victim = next(iter(before))
    node = next(node for node in (2, 3) if victim in nodes.processes(node))
    killed = nodes.kill(node, "RankActor")
    assert killed >= 1
    wait_until(lambda: len(engines & set(nodes.processes(title="EngineActor"))) == len(engines) - killed, 60.0)
    started = time.monotonic()
    wait_until(lambda: len(nodes.processes(title="RankActor")) == 2, 120.0)
    nodes.wait_ready(2)
    print(f"again there after {time.monotonic() - started:.1f} s")
    alone, again = answers_of(nodes, "one"), answers_of(nodes, "tensor")
    assert [each["text"] for each in again] == [each["text"] for each in alone]
