"""Engines of rank actors: the tokens of one rank, for every architecture, and the reported cause of a failed start."""

import itertools

import pytest
import ray

from support.golden.engine_answers import Answers, answers_of, assert_alike, config_of, greedy_requests
from support.services.rank_actors import HAS_STARTED, WITHIN_S, group_owner
from support.tiny_models.tiny_architectures import DECODERS, ENCODER_DECODERS

MAKERS = DECODERS | ENCODER_DECODERS
CASES = [(name, size) for name in MAKERS for size in [(2, 1), (1, 2)]] + [("qwen3-moe", (2, 2)), ("marian", (2, 2))]
ALWAYS = ("t5", (1, 2))
NAMED_WITHIN_S = 10.0  # five times what it takes where the machine has nothing else to do


@pytest.fixture(scope="module")
def owner(cluster):
    with group_owner() as owner:
        yield owner


@pytest.fixture(scope="module")
def numbers():
    return itertools.count()


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param(*case, marks=() if case == ALWAYS else pytest.mark.faults, id="{}, {}".format(*case))
        for case in CASES
    ],
)
def test_rank_actors_answer_like_one_rank(name, size, owner, numbers, tmp_path):
    folder, (tensor, pipeline) = MAKERS[name](tmp_path), size
    for file_name in ("tokenizer.json", "tokenizer_config.json"):  # required, though no text is read
        (folder / file_name).write_text("{}", encoding="utf-8")
    config = config_of(folder, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline)
    deltas = ray.get(owner.deltas_of.remote(config, next(numbers), greedy_requests()), timeout=2 * WITHIN_S)
    got = Answers({}, {})
    for delta in deltas:
        got.note(delta)
    assert_alike(got, answers_of(folder))


@pytest.fixture(scope="module")
def start_s(owner, numbers, tmp_path_factory):
    config = _two_ranks(tmp_path_factory.mktemp("undisturbed"))
    for _ in range(2):  # the first start fills caches
        seconds = ray.get(owner.start_seconds.remote(config, next(numbers)), timeout=2 * WITHIN_S)
    return seconds


# From before its constructor has returned, over the imports and the rendezvous, to the weights and the first step.
@pytest.mark.faults
@pytest.mark.parametrize("share", [0.0, 0.15, 0.4, 0.6, 0.8])
def test_a_rank_actor_that_is_stopped_while_its_engine_starts_is_soon_named(share, start_s, owner, numbers, tmp_path):
    config = _two_ranks(tmp_path)
    for after_s in [share * start_s * 0.8**attempt for attempt in range(5)]:
        said, seconds = ray.get(owner.seconds_until_named.remote(config, next(numbers), after_s), timeout=2 * WITHIN_S)
        print(f"stopped {after_s:.1f} s into a start of {start_s:.1f} s, named after {seconds:.1f} s: {said}")
        if said != HAS_STARTED:  # else it took less time than the undisturbed start
            break
    assert "rank 1 of engine" in said
    assert seconds < NAMED_WITHIN_S


def _two_ranks(folder):
    folder = MAKERS["llama"](folder)
    for file_name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file_name).write_text("{}", encoding="utf-8")
    return config_of(folder, tensor_parallel_size=2)
