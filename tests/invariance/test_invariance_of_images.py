"""Sixteen requests, half of them with images, in every way that requests may come and run: as each got it alone."""

import itertools
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from rayinfer import LLM, SamplingParams
from rayinfer.outputs import RequestOutput
from support.tiny_models.tiny_qwen_vision import IMAGE, make_tiny_qwen_vision_model
from support.tiny_models.tiny_vision import make_tiny_vision_model, picture_of

SETTINGS: dict[str, Any] = {"dtype": "float32", "num_threads": 1, "block_size": 8, "max_model_len": 400}
ROOMY: dict[str, Any] = {"num_kv_blocks": 800, "max_num_batched_tokens": 4096}
TIGHT: dict[str, Any] = {"num_kv_blocks": 50, "max_num_batched_tokens": 40}
SIDES = [(72, 72), (24, 24), (100, 30), (30, 100)]
WAYS = {
    "chunks and preemption": TIGHT,
    "another pool in host memory": TIGHT | {"kv_offload_bytes": 1 << 20},
    "no prefix cache": ROOMY | {"enable_prefix_caching": False},
    "steps ahead": TIGHT | {"async_scheduling": True},
    "speculation": TIGHT | {"speculation": "auto"},
}
RANKS = {
    "two tensor ranks": {"tensor_parallel_size": 2},
    "two stages": {"pipeline_parallel_size": 2},
    "both": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
}
ALWAYS = ("chunks and preemption", "two tensor ranks")

Prompts = list[tuple[dict[str, Any], SamplingParams]]


FAMILIES = {"idefics3": "<image>", "qwen2_5_vl": IMAGE}  # and their markers of images


@pytest.fixture(scope="module", params=["idefics3", pytest.param("qwen2_5_vl", marks=pytest.mark.models)])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    make = make_tiny_vision_model if family == "idefics3" else make_tiny_qwen_vision_model
    return make(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def requests(family: str) -> Prompts:
    """Of each pair of requests with images both have the same text, and of some the first images are the same."""
    found: Prompts = []
    for number in range(16):
        images = [picture_of(*SIDES[number // 2 % 4], number % 8)] if number % 2 else []
        images += [picture_of(24, 20)] if number in (3, 5) else []
        text = "Look here:" + f" {FAMILIES[family]}" * len(images) + " What is the capital of France?"
        params = SamplingParams(
            temperature=0.0 if number % 3 else 0.9, seed=number, max_tokens=20 + number, ignore_eos=True, logprobs=2
        )
        found.append(({"prompt": text, "multi_modal_data": {"image": images}}, params))
    return found


@pytest.fixture(scope="module")
def alone(folder: Path, requests: Prompts) -> list[RequestOutput]:
    with LLM(str(folder), enable_prefix_caching=False, **SETTINGS, **ROOMY) as llm:
        return [llm.generate(prompt, params, use_tqdm=False)[0] for prompt, params in requests]


def check_same(outputs: list[RequestOutput], alone: list[RequestOutput]) -> None:
    for number, (output, wanted) in enumerate(zip(outputs, alone, strict=True)):
        assert (number, output.outputs) == (number, wanted.outputs)


def check_close(outputs: list[RequestOutput], alone: list[RequestOutput]) -> None:
    """Over ranks sums have another order."""
    for number, (output, wanted) in enumerate(zip(outputs, alone, strict=True)):
        (got,), (expected,) = output.outputs, wanted.outputs
        assert (number, got.token_ids) == (number, expected.token_ids)
        for place, other in zip(got.logprobs or (), expected.logprobs or (), strict=True):
            assert place.keys() == other.keys()
            assert all(abs(place[token_id].logprob - other[token_id].logprob) < 1e-4 for token_id in place)


def run_shuffled(
    llm: LLM, requests: Prompts, seed: int, after_step: Callable[[], Iterable[RequestOutput]] = lambda: ()
) -> list[RequestOutput]:
    """Give an LLM the requests in another order, up to three before each step.

    `after_step` returns the outputs of steps of its own.
    """
    chance = random.Random(seed)
    waiting = chance.sample(range(len(requests)), len(requests))
    ended: dict[str, RequestOutput] = {}
    while waiting or llm.has_unfinished_requests():
        for _ in range(min(len(waiting), chance.randint(0, 3))):
            number = waiting.pop()
            llm.add_request(*requests[number], request_id=str(number))
        ended |= {output.request_id: output for output in [*llm.step(), *after_step()] if output.finished}
    return [ended[str(number)] for number in range(len(requests))]


def test_answers_to_images_differ_and_are_the_same_in_one_batch(folder, requests, alone):
    assert len({tuple(output.outputs[0].token_ids[:20]) for output in alone}) > 10
    with LLM(str(folder), **SETTINGS, **ROOMY) as llm:
        prompts, params = [prompt for prompt, _ in requests], [each for _, each in requests]
        check_same(llm.generate(prompts, params, use_tqdm=False), alone)
        again = llm.generate(prompts, params, use_tqdm=False)
    check_same(again, alone)
    assert all(output.num_cached_tokens >= len(output.prompt_token_ids) - 8 for output in again)


def marked(ways: Iterable[str]) -> list[Any]:
    return [pytest.param(way, marks=() if way in ALWAYS else pytest.mark.models) for way in ways]


@pytest.mark.parametrize("way", marked(WAYS))
def test_answers_to_images_are_the_same_in_every_way(way, folder, requests, alone):
    with LLM(str(folder), **SETTINGS | WAYS[way]) as llm:
        check_same(run_shuffled(llm, requests, seed=3), alone)
        assert llm.stats.kv_blocks_used == 0
        assert llm.stats.num_preemptions_total > 0 or WAYS[way]["num_kv_blocks"] > 100


@pytest.mark.models
@pytest.mark.parametrize("level", [0, 1, 2])
def test_answers_to_images_are_the_same_when_the_engine_sleeps_in_between(level, folder, requests, alone):
    steps = itertools.count(1)
    with LLM(str(folder), **SETTINGS, **TIGHT | {"kv_offload_bytes": 1 << 20}) as llm:

        def rest() -> Iterable[RequestOutput]:
            if next(steps) % 9:
                return ()
            llm.sleep(level)
            outputs = llm.step()
            llm.wake()
            return outputs

        check_same(run_shuffled(llm, requests, seed=4, after_step=rest), alone)
        assert llm.stats.kv_blocks_used == 0
        stats = llm.stats.images
        assert (stats.queries_total, stats.queries_total - stats.cache_hits_total) == (10, stats.encodings_total)
        assert stats.encodings_total < 10 or level == 2


@pytest.mark.parametrize("way", marked(RANKS))
def test_answers_to_images_are_the_same_over_ranks(way, folder, requests, alone):
    with LLM(str(folder), **SETTINGS, **TIGHT, **RANKS[way]) as llm:
        check_close(run_shuffled(llm, requests, seed=3), alone)
        assert llm.stats.num_preemptions_total > 0
