"""Greedy tokens and log probabilities in float32 against transformers on the same device: every architecture."""

import pytest

from support.golden.engine_answers import LENGTHS, PROMPTS, answers_of
from support.golden.teacher_forcing import GreedyAnswer, ReferenceModel, compare
from support.tiny_models.tiny_architectures import DECODERS, ENCODER_DECODERS

MAKERS = DECODERS | ENCODER_DECODERS
WAYS = [{}, {"enforce_eager": True}, {"async_scheduling": False}, {"max_num_batched_tokens": 16}]


def answers_by_name(folder, **settings):
    answers = answers_of(folder, **settings)
    return {
        name: GreedyAnswer(PROMPTS[int(name)], token_ids, answers.logprobs[name])
        for name, token_ids in answers.token_ids.items()
    }


def check(folder, ways):
    reference = ReferenceModel(folder)
    for way in ways:
        found = compare(answers_by_name(folder, **way), reference)
        assert found.num_tokens == sum(LENGTHS)
        assert found.differences == [], way


@pytest.mark.gpu
@pytest.mark.parametrize("name", MAKERS)
def test_a_gpu_generates_what_transformers_generates_on_it(name, tmp_path):
    check(MAKERS[name](tmp_path), WAYS)


@pytest.mark.parametrize("name", ["gemma3", "qwen3-moe", "marian"])
def test_the_reference_generates_what_this_machine_generates(name, tmp_path):
    check(MAKERS[name](tmp_path), [{}])


def test_a_token_that_is_not_the_best_and_a_wrong_log_probability_are_found(tmp_path):
    folder = DECODERS["llama"](tmp_path)
    answers, reference = answers_by_name(folder), ReferenceModel(folder)
    right = answers["2"]
    other = (right.token_ids[-1] + 1) % 96
    for wrong in (
        right._replace(token_ids=[*right.token_ids[:-1], other]),
        right._replace(logprobs=[*right.logprobs[:-1], right.logprobs[-1] + 1e-3]),
        right._replace(logprobs=[*right.logprobs[:-1], float("nan")]),
    ):
        (line,) = compare(answers | {"2": wrong}, reference).differences
        assert line.startswith("'2', output token 12: ")
