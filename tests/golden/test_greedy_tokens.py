"""Greedy answers against transformers' `generate`, in every way that a request can run."""

from support.golden.golden_comparison import best_two, greedy_difference
from support.golden.golden_prompts import GOLDEN_PROMPTS

BLOCK_SIZE = 16


def test_there_are_fifty_prompts_of_5_to_400_tokens(greedy_requests):
    lengths = [len(request.prompt_token_ids) for request in greedy_requests]
    assert len({prompt.name for prompt in GOLDEN_PROMPTS}) == len(lengths) == 50
    assert min(lengths) == 5
    assert 390 <= max(lengths) <= 400


def test_greedy_tokens_are_those_of_transformers(run, references, greedy_requests, own_model, unexcused):
    differences = []
    for request in run.answered(greedy_requests):
        expected, their_best_two = references[request.name]
        got = run.token_ids(request)
        assert len(got) == request.sampling_params.max_tokens
        differences.append(
            greedy_difference(request, expected, got[: len(expected)], their_best_two.__getitem__, own_model)
        )
    assert unexcused(differences) == ""


def test_greedy_tokens_are_the_same_in_every_case_even_after_a_near_tie(
    run, in_one_batch, greedy_requests, own_model, unexcused
):
    differences = []
    for request in run.answered(greedy_requests):
        expected = in_one_batch.token_ids(request)

        def our_best_two(position, request=request, expected=expected):
            return best_two(own_model.next_logits([*request.prompt_token_ids, *expected[:position]]))

        differences.append(greedy_difference(request, expected, run.token_ids(request), our_best_two, own_model))
    assert unexcused(differences) == ""


def test_all_prompts_of_one_batch_were_computed_in_one_step(in_one_batch, all_requests):
    # Requests with equal prompts start one step later, to share what the first of them has computed.
    assert in_one_batch.stats.num_steps_total <= all_requests[0].sampling_params.max_tokens + 2
    assert in_one_batch.stats.num_preemptions_total == 0


def test_every_prompt_longer_than_a_block_was_found_in_the_cache(already_cached, case_requests):
    uncached = [
        request.name
        for request in case_requests
        if already_cached.outputs[request.name].num_cached_tokens
        < (len(request.prompt_token_ids) - 1) // BLOCK_SIZE * BLOCK_SIZE
    ]
    assert uncached == []


def test_the_small_pool_made_requests_give_way(preempted):
    assert preempted.stats.num_preemptions_total > 0


def test_no_step_of_the_chunked_case_computed_more_than_16_tokens(in_chunks_of_16_tokens):
    stats = in_chunks_of_16_tokens.stats
    # The first token of an answer comes out of the step that computes the prompt's end.
    num_computed = stats.prompt_tokens_total + stats.generation_tokens_total - stats.requests_finished_total["length"]
    assert stats.cached_prompt_tokens_total == stats.num_preemptions_total == 0
    assert stats.num_steps_total >= num_computed / 16
