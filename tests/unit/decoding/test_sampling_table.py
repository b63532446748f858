import numpy as np
import pytest

from rayinfer.decoding.sampling_table import SamplingTable
from rayinfer.errors import InvalidParameter
from rayinfer.sampling_params import SamplingParams

VOCAB = 100


@pytest.fixture
def table():
    return SamplingTable(4, VOCAB)


def fill(table, row, params=None, *, seed=0, choice=0):
    table.fill(row, params or SamplingParams(), seed=seed, choice=choice, min_end_position=0, penalty_slot=None)


def test_rows_come_back_in_the_order_asked_for(table):
    for row, choice in ((0, 10), (2, 12), (3, 13)):
        fill(table, row, choice=choice)
    assert table.at(np.array([3, 0, 2]))["choice"].tolist() == [13, 10, 12]


def test_a_row_that_was_cleared_or_never_filled_is_refused(table):
    fill(table, 0)
    fill(table, 1)
    table.clear(1)
    with pytest.raises(InvalidParameter, match=r"rows \[1, 2\] hold no request"):
        table.at(np.array([0, 1, 2]))


@pytest.mark.parametrize("row", [-1, 4])
def test_a_row_outside_the_table_is_refused(table, row):
    with pytest.raises(InvalidParameter, match=f"from 0 to 3, got {row}"):
        table.at(np.array([row]))


@pytest.mark.parametrize("top_k", [-1, 0, VOCAB, VOCAB + 1, 2**31 - 1])
def test_a_top_k_that_bans_nothing_is_the_vocabulary_size(table, top_k):
    fill(table, 0, SamplingParams(top_k=top_k))
    assert table.at(np.array([0]))["top_k"] == [VOCAB]


def test_a_temperature_too_small_to_divide_by_is_greedy(table):
    for row, temperature in enumerate((0.0, 1e-30, 1e-4)):
        fill(table, row, SamplingParams(temperature=temperature))
    assert table.at(np.array([0, 1, 2]))["is_greedy"].tolist() == [True, True, False]


def test_zero_logprobs_differ_from_none(table):
    for row, logprobs in enumerate((None, 0, 20)):
        fill(table, row, SamplingParams(logprobs=logprobs))
    assert table.at(np.array([0, 1, 2]))["num_logprobs"].tolist() == [0, 1, 21]


@pytest.mark.parametrize(("seed", "bits"), [(2**64 - 1, -1), (-1, -1), (2**63, -(2**63)), (-(2**63), -(2**63)), (5, 5)])
def test_seeds_are_kept_as_their_64_bits(table, seed, bits):
    fill(table, 0, seed=seed)
    assert table.at(np.array([0]))["seed"] == [bits]


def test_greedy_rows_that_ask_for_nothing_else_are_plain(table):
    fill(table, 0, SamplingParams(temperature=0.0))
    fill(table, 1, SamplingParams(temperature=0.0))
    assert table.are_plain(np.array([1, 0]))
    table.clear(1)
    assert not table.are_plain(np.array([1, 0]))
    assert table.are_plain(np.array([0]))


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.5},
        {"presence_penalty": 0.1},
        {"logit_bias": {3: 1.0}},
        {"bad_token_sequences": [[4, 5]]},
        {"logprobs": 0},
    ],
    ids=str,
)
def test_rows_that_ask_for_anything_are_not_plain(table, settings):
    fill(table, 0, SamplingParams(temperature=0.0))
    fill(table, 1, SamplingParams(**({"temperature": 0.0} | settings)))
    assert not table.are_plain(np.array([0, 1]))


def test_rows_before_which_no_end_may_stand_are_not_plain(table):
    table.fill(0, SamplingParams(temperature=0.0), seed=0, choice=0, min_end_position=5, penalty_slot=None)
    assert not table.are_plain(np.array([0]))


@pytest.mark.parametrize("rows", [[], [-1], [0, 4]], ids=str)
def test_rows_that_are_none_are_not_plain(table, rows):
    for row in range(4):
        fill(table, row, SamplingParams(temperature=0.0))
    assert not table.are_plain(np.array(rows, dtype=np.int64))
