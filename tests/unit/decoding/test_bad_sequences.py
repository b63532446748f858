import numpy as np
import pytest
import torch
from transformers.generation.logits_process import NoBadWordsLogitsProcessor

from rayinfer.decoding.bad_sequences import BadSequences
from rayinfer.sampling_params import MAX_BAD_SEQUENCE_TOKENS

VOCAB = 12


def ids(*token_ids):
    return np.array(token_ids, np.int64)


def bad_sequences(num_rows=4):
    return BadSequences(num_rows, torch.device("cpu"))


def banned(watched, *rows):
    scores = torch.zeros(len(rows), VOCAB)
    watched.forbid_(scores, ids(*rows))
    assert set(scores.unique().tolist()) <= {0.0, float("-inf")}
    return [line.nonzero().flatten().tolist() for line in scores < 0]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_banned_is_what_transformers_bans(seed):
    generator = np.random.default_rng(seed)
    sequences = [generator.integers(0, 3, generator.integers(2, 5)).tolist() for _ in range(8)]
    history = generator.integers(0, 3, 9)
    expected = NoBadWordsLogitsProcessor(sequences)(torch.from_numpy(history)[None], torch.zeros(1, VOCAB))
    watched = bad_sequences()
    watched.add_row(2, sequences, history[:5], history[5:])
    assert banned(watched, 2) == [(expected[0] < 0).nonzero().flatten().tolist()]


def test_a_sequence_may_begin_in_the_prompt_and_end_in_the_output():
    watched = bad_sequences()
    watched.add_row(0, [[3, 4, 5]], ids(1, 3), ids(4))
    watched.add_row(1, [[3, 4, 5]], ids(1, 3), ids(4, 1))
    assert banned(watched, 0, 1) == [[5], []]


def test_chosen_tokens_count_like_those_a_request_came_with():
    watched = bad_sequences()
    watched.add_row(0, [[3, 4, 5], [4, 6]], ids(9), ids())
    assert banned(watched, 0) == [[]]
    watched.record(ids(0), torch.tensor([3]))
    assert banned(watched, 0) == [[]]
    watched.record(ids(0), torch.tensor([4]))
    assert banned(watched, 0) == [[5, 6]]
    watched.record(ids(0), torch.tensor([3]))
    assert banned(watched, 0) == [[]]


def test_two_sequences_with_one_end_are_distinguished():
    watched = bad_sequences()
    watched.add_row(0, [[1, 5], [2, 5], [3, 5]], ids(2), ids())
    watched.add_row(1, [[1, 5], [2, 5]], ids(7), ids())
    assert banned(watched, 0, 1) == [[5], []]


def test_rows_are_watched_apart_whatever_their_order_in_the_batch():
    watched = bad_sequences()
    watched.add_row(3, [[1, 2], [4, 1, 2]], ids(4, 1), ids())
    watched.add_row(1, [[1, 6]], ids(1), ids())
    watched.record(ids(2, 1, 3), torch.tensor([8, 1, 4]))
    watched.record(ids(3), torch.tensor([1]))
    assert banned(watched, 1, 0, 3) == [[6], [], [2]]


def test_a_history_shorter_than_the_sequence_is_no_match():
    watched = bad_sequences()
    watched.add_row(0, [[0, 0, 5], [0, 6]], ids(0), ids())
    assert banned(watched, 0) == [[6]]


def test_the_longest_sequence_is_watched_to_its_end():
    sequence = [1] * (MAX_BAD_SEQUENCE_TOKENS - 1) + [2]
    watched = bad_sequences()
    watched.add_row(0, [sequence], ids(3, *sequence[:-2]), ids())
    assert banned(watched, 0) == [[]]
    watched.record(ids(0), torch.tensor([1]))
    assert banned(watched, 0) == [[2]]


def test_a_row_that_was_left_is_watched_no_more():
    watched = bad_sequences()
    watched.add_row(0, [[1, 2]], ids(1), ids())
    watched.remove_row(0)
    assert banned(watched, 0) == [[]]
    watched.add_row(0, [[4, 2]], ids(1), ids())
    assert banned(watched, 0) == [[]]
