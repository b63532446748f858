import math

import numpy as np

from rayinfer.engine.plan.step_plan import LogprobsArrays
from rayinfer.engine.scheduling.step_deltas import WantedLogprobs, logprobs_by_row
from rayinfer.outputs import Logprob


def scored(rows, token_ids, logprobs, ranks):
    return LogprobsArrays(
        rows=np.array(rows),
        positions=np.arange(len(rows)),
        token_ids=np.array(token_ids, np.int32),
        logprobs=np.array(logprobs, np.float32),
        ranks=np.array(ranks, np.int32),
    )


def test_every_row_gets_its_places_in_order_and_as_many_tokens_as_it_asked_for():
    tokens = scored(
        [5, 5, 2],
        [[7, 3, 4], [3, 3, 9], [8, 1, 2]],
        [[-4.0, -0.5, -1.0], [-0.25, -0.25, -2.0], [-8.0, -1.5, -2.5]],
        [6, 1, 40],
    )
    assert logprobs_by_row(tokens, {5: WantedLogprobs(2), 2: WantedLogprobs(1)}.__getitem__) == {
        5: [
            {7: Logprob(-4.0, 6), 3: Logprob(-0.5, 1), 4: Logprob(-1.0, 2)},
            {3: Logprob(-0.25, 1), 9: Logprob(-2.0, 2)},
        ],
        2: [{8: Logprob(-8.0, 40), 1: Logprob(-1.5, 1)}],
    }


def test_the_chosen_token_comes_first_and_once():
    places = logprobs_by_row(scored([0], [[3, 9, 3]], [[-2.0, -1.0, -2.0]], [2]), lambda row: WantedLogprobs(2))
    assert list(places[0][0]) == [3, 9]
    assert places[0][0][3] == Logprob(-2.0, 2)


def test_none_of_the_most_likely_leaves_the_token_alone():
    places = logprobs_by_row(scored([1], [[3, 9]], [[-math.inf, -1.0]], [700]), lambda row: WantedLogprobs(0))
    assert places == {1: [{3: Logprob(-math.inf, 700)}]}


def test_values_are_plain_numbers_that_any_encoder_takes():
    [(token_id, logprob)] = logprobs_by_row(scored([1], [[3]], [[-1.5]], [1]), lambda row: WantedLogprobs(0))[1][
        0
    ].items()
    assert (type(token_id), type(logprob.logprob), type(logprob.rank)) == (int, float, int)


def test_nothing_scored_returns_nothing():
    assert logprobs_by_row(None, lambda row: WantedLogprobs(0)) == {}
    assert logprobs_by_row(scored([], np.empty((0, 1)), np.empty((0, 1)), []), lambda row: WantedLogprobs(0)) == {}


def test_listed_tokens_are_the_last_columns_of_their_row_and_have_no_rank_of_their_own():
    tokens = scored([5, 2], [[7, 3, 0, 9], [8, 1, 8, 4]], [[-4.0, -0.5, -6.0, -3.0], [-8.0, -1.5, -8.0, -2.5]], [6, 9])
    wanted = {5: WantedLogprobs(0, 1), 2: WantedLogprobs(1, 2)}
    assert logprobs_by_row(tokens, wanted.__getitem__) == {
        5: [{7: Logprob(-4.0, 6), 9: Logprob(-3.0, None)}],
        2: [{8: Logprob(-8.0, 9), 1: Logprob(-1.5, 1), 4: Logprob(-2.5, None)}],
    }
