"""Logprobs and prompt logprobs in deltas, with preemptions, chunks and aborts on the way."""

import pytest

from rayinfer.outputs import TokenDelta
from support.fakes.fake_executor import INVALID, VOCAB_SIZE, drive, expected_tokens, mixed_answer, numbers
from support.fakes.fake_scores import expected_logprobs

PROMPT = numbers(19)


def scores_of_answer(prompt, num_tokens, num_top):
    tokens = expected_tokens(prompt, num_tokens)
    return [expected_logprobs([*prompt, *tokens[:i]], token, num_top, VOCAB_SIZE) for i, token in enumerate(tokens)]


def scores_of_prompt(prompt, num_top):
    return [None] + [expected_logprobs(prompt[:i], prompt[i], num_top, VOCAB_SIZE) for i in range(1, len(prompt))]


# New tokens


def test_every_delta_has_every_field():
    # They are made without their constructor, which would say what is missing.
    driven = drive()
    driven.add("a", PROMPT, max_tokens=2)
    first, last = driven.step() + driven.step()
    token_ids = expected_tokens(PROMPT, 2)
    assert type(first) is type(last) is TokenDelta
    assert first == TokenDelta("a", 0, token_ids[:1])
    assert last == TokenDelta("a", 1, token_ids[1:], finish_reason="length")


def test_each_request_gets_the_log_probabilities_it_asked_for_and_others_get_none():
    driven = drive()
    wanted = {"two": 2, "five": 5, "itself": 0, "none": None}
    for start, (request_id, num_top) in enumerate(wanted.items()):
        driven.add(request_id, numbers(9, start), logprobs=num_top)
    driven.run()
    assert driven.logprobs == {
        request_id: scores_of_answer(numbers(9, start), 4, num_top)
        for start, (request_id, num_top) in enumerate(wanted.items())
        if num_top is not None
    }


def test_a_token_that_means_nothing_brings_no_log_probabilities():
    driven = drive(answer=lambda context: INVALID if len(context) == 21 else mixed_answer(context))
    driven.add("a", PROMPT, logprobs=1)
    driven.run()
    assert driven.reasons() == {"a": "error"}
    assert driven.logprobs["a"] == scores_of_answer(PROMPT, 2, 1)


# Prompts


@pytest.mark.parametrize("budget", [1, 3, 4, 7, 18, 19, 64])
def test_a_prompts_log_probabilities_come_once_and_whole_however_it_is_cut(budget):
    driven = drive(budget=budget)
    driven.add("a", PROMPT, prompt_logprobs=3, logprobs=1)
    driven.add("b", numbers(6, 1), prompt_logprobs=0)
    driven.add("c", numbers(6, 2))
    driven.run()
    assert driven.prompt_logprobs == {"a": scores_of_prompt(PROMPT, 3), "b": scores_of_prompt(numbers(6, 1), 0)}
    assert driven.logprobs == {"a": scores_of_answer(PROMPT, 4, 1)}


def test_they_come_with_the_first_token():
    driven = drive(budget=10)
    driven.add("a", PROMPT, prompt_logprobs=0)
    deltas = []
    while driven.engine.has_unfinished_requests:
        deltas += driven.step()
    assert [delta.prompt_logprobs is not None for delta in deltas] == [True, False, False, False]
    assert deltas[0].token_ids == expected_tokens(PROMPT, 1)


def test_a_prompt_of_one_token_has_nothing_to_score():
    driven = drive()
    driven.add("a", [5], prompt_logprobs=2)
    driven.run()
    assert driven.prompt_logprobs == {"a": [None]}


def test_a_prompt_to_be_scored_takes_no_hits_and_is_hit_by_others():
    driven = drive()
    driven.add("first", PROMPT)
    driven.run()
    driven.add("scored", PROMPT, prompt_logprobs=1)
    driven.run()
    driven.add("other", PROMPT + numbers(9, 2))
    driven.run()
    assert driven.ends["scored"].num_cached_tokens == 0
    assert driven.prompt_logprobs["scored"] == scores_of_prompt(PROMPT, 1)
    assert driven.ends["other"].num_cached_tokens == 16


def test_a_scored_prompt_waits_for_no_duplicate_but_duplicates_wait():
    driven = drive()
    driven.add("writer", PROMPT)
    driven.add("scored", PROMPT, prompt_logprobs=1)
    driven.add("twin", PROMPT)
    driven.step()
    assert driven.running() == {"writer", "scored"}
    driven.run()
    assert driven.ends["twin"].num_cached_tokens == 16
    driven = drive()
    driven.add("scored", PROMPT, prompt_logprobs=1)
    driven.add("twin", PROMPT)
    driven.step()
    assert driven.running() == {"scored"}
    driven.run()
    assert driven.ends["twin"].num_cached_tokens == 16


@pytest.mark.parametrize("num_offload_blocks", [0, 16])
@pytest.mark.parametrize("num_steps", range(1, 8))
def test_preemption_neither_loses_nor_repeats_prompt_logprobs(num_steps, num_offload_blocks):
    driven = drive(num_blocks=8, budget=4, num_offload_blocks=num_offload_blocks)
    driven.add("low", PROMPT, max_tokens=6, priority=1, prompt_logprobs=2, logprobs=2)
    for _ in range(num_steps):
        driven.step()
    driven.add("urgent", numbers(26, 1), max_tokens=1)
    driven.run()
    assert driven.engine.stats.num_preemptions_total == 1
    assert driven.prompt_logprobs == {"low": scores_of_prompt(PROMPT, 2)}
    assert driven.logprobs == {"low": scores_of_answer(PROMPT, 6, 2)}


def test_a_prompt_that_gave_way_computes_again_only_what_it_has_lost():
    driven = drive(num_blocks=8, budget=8, max_num_seqs=1)
    driven.add("low", PROMPT, priority=1, prompt_logprobs=0, max_tokens=1)
    driven.step()
    driven.step()
    driven.add("urgent", numbers(3, 1), max_tokens=1)
    driven.run()
    assert driven.executor.num_tokens_computed == len(PROMPT) + 3  # 16 tokens are scored, and in the prefix cache


def test_a_prompt_that_continues_elsewhere_is_scored_with_its_next_token():
    tokens = expected_tokens(PROMPT, 12)
    driven = drive(budget=8)
    driven.add("a", PROMPT, outputs=tokens[:9], max_tokens=12, prompt_logprobs=1, logprobs=0)
    driven.run()
    assert driven.prompt_logprobs == {"a": scores_of_prompt(PROMPT, 1)}
    assert driven.logprobs == {"a": scores_of_answer(PROMPT, 12, 0)[9:]}


def test_an_aborted_prompt_returns_no_logprobs():
    driven = drive(budget=8)
    driven.add("a", PROMPT, prompt_logprobs=1)
    driven.step()
    driven.abort("a")
    assert driven.prompt_logprobs == {}


# Prompts that are only scored


@pytest.mark.parametrize("budget", [4, 19, 64])
def test_a_request_for_no_tokens_ends_with_length_once_its_prompt_is_computed(budget):
    driven = drive(budget=budget)
    driven.add("scored", PROMPT, max_tokens=0, prompt_logprobs=2)
    driven.add("bare", numbers(6, 1), max_tokens=0)
    driven.add("other", numbers(6, 2), max_tokens=2)
    driven.run()
    assert driven.tokens == {"scored": [], "bare": [], "other": expected_tokens(numbers(6, 2), 2)}
    assert driven.reasons() == {"scored": "length", "bare": "length", "other": "length"}
    assert driven.prompt_logprobs == {"scored": scores_of_prompt(PROMPT, 2)}
    assert driven.logprobs == {}
    assert driven.engine.stats.generation_tokens_total == 2
    assert driven.engine.stats.requests_finished_total == {"length": 3}


def test_a_prompt_that_is_only_scored_may_fill_the_context():
    driven = drive(num_blocks=8)
    driven.add("a", numbers(32), max_tokens=0, prompt_logprobs=0)
    driven.run()
    assert driven.prompt_logprobs == {"a": scores_of_prompt(numbers(32), 0)}


def test_what_a_request_for_no_tokens_has_computed_is_hit_by_the_next():
    driven = drive()
    driven.add("warms", numbers(17), max_tokens=0)
    driven.run()
    driven.add("next", numbers(17), max_tokens=0)
    driven.run()
    assert driven.ends["next"].num_cached_tokens == 16
    assert driven.executor.num_tokens_computed == 17 + 1
