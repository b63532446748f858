"""Answers drawn with a seed: the same in every way that a request can run, and drawn from the right probabilities."""

import torch

from support.golden.golden_comparison import draw_for, sampled_difference

# Two computations of the same logits differ a little, and every token before this one moves its borders.
TOLERANCE = 1e-4


def test_sampled_tokens_are_the_same_in_every_case(run, in_one_batch, sampled_requests, own_model, unexcused):
    differences = [
        sampled_difference(request, in_one_batch.token_ids(request), run.token_ids(request), own_model)
        for request in run.answered(sampled_requests)
    ]
    assert unexcused(differences) == ""


def test_each_sampled_token_holds_the_draw_among_the_probabilities_of_transformers(
    in_one_batch, sampled_requests, transformers_model, one_thread
):
    wrong = []
    for request in sampled_requests:
        prompt, answer = request.prompt_token_ids, in_one_batch.token_ids(request)
        with torch.inference_mode():
            logits = transformers_model(torch.tensor([prompt + answer[:-1]]), logits_to_keep=len(answer)).logits[0]
        for position, token_id in enumerate(answer):
            draw = draw_for(request, answer[:position], logits[position])
            if not draw.lies_within(token_id, tolerance=TOLERANCE):
                wrong.append(f"{request.name!r}, token {position}: {draw.share:.9f}, but {draw.describe(token_id)}")
    assert wrong == []


def test_sampling_is_not_greedy(in_one_batch, sampled_requests, greedy_requests):
    greedy_answers = {tuple(request.prompt_token_ids): in_one_batch.token_ids(request) for request in greedy_requests}
    changed = [
        request
        for request in sampled_requests
        if in_one_batch.token_ids(request) != greedy_answers[tuple(request.prompt_token_ids)]
    ]
    assert len(changed) >= len(sampled_requests) - 2
