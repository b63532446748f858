"""Engines of rank actors for every architecture: what one rank answers; one always, all with `make test-faults`."""

import itertools

import pytest
import ray

from engine_answers import Answers, answers_of, assert_alike, config_of, greedy_requests
from rank_actors import WITHIN_S, group_owner
from tiny_architectures import DECODERS, ENCODER_DECODERS

MAKERS = DECODERS | ENCODER_DECODERS
CASES = [(name, size) for name in MAKERS for size in [(2, 1), (1, 2)]] + [("qwen3-moe", (2, 2)), ("marian", (2, 2))]
ALWAYS = ("t5", (1, 2))


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
    for file_name in ("tokenizer.json", "tokenizer_config.json"):  # which must be there, though nobody reads texts
        (folder / file_name).write_text("{}", encoding="utf-8")
    config = config_of(folder, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline)
    deltas = ray.get(owner.deltas_of.remote(config, next(numbers), greedy_requests()), timeout=2 * WITHIN_S)
    got = Answers({}, {})
    for delta in deltas:
        got.note(delta)
    assert_alike(got, answers_of(folder))
