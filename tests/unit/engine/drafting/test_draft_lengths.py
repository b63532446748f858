import numpy as np
import pytest

from rayinfer.engine.drafting.draft_lengths import AUTO, MOST_LINES, OFF, DraftLengths, speculation_mode


class Rows:
    """Rows of a batch that draft as long as they may."""

    def __init__(self, count, mode=AUTO):
        self.rows = np.arange(count)
        self.modes = np.full(count, mode)
        self.longest = np.full(count, 100)
        self.generations = np.zeros(count, np.int64)
        self.lengths = DraftLengths(count)

    def choose(self, *, num_lines=None, num_more=1000):
        return self.lengths.choose(
            self.rows,
            self.modes,
            self.longest,
            generations=self.generations,
            num_lines=len(self.rows) if num_lines is None else num_lines,
            num_more=num_more,
        ).tolist()

    def are_worth_waiting(self, num_lines=1):
        waits = self.lengths.are_worth_waiting(self.rows, generations=self.generations, num_lines=num_lines)
        return waits.tolist()

    def observe(self, num_drafts, num_accepted, times=20):
        for _ in range(times):
            self.lengths.observe(self.rows, np.full(len(self.rows), num_drafts), np.full(len(self.rows), num_accepted))


def test_the_settings_have_numbers():
    assert [speculation_mode(each) for each in ("off", "auto", 5)] == [OFF, AUTO, 5]


def test_a_row_alone_drafts_three_tokens_whatever_became_of_earlier_ones():
    batch = Rows(1)
    batch.choose()
    batch.observe(num_drafts=3, num_accepted=0)
    assert batch.choose() == [3]  # four lines cost what one costs


def test_a_row_whose_drafts_are_accepted_drafts_more():
    batch = Rows(1)
    batch.choose()
    batch.observe(num_drafts=8, num_accepted=8)
    assert batch.choose()[0] >= 8


@pytest.mark.parametrize(("count", "most"), [(8, 2), (32, 1), (64, 0), (100, 0)])
def test_rows_draft_less_in_a_larger_batch(count, most):
    batch = Rows(count)
    batch.choose()
    batch.observe(num_drafts=4, num_accepted=3)  # four of five tokens
    chosen = batch.choose()
    assert max(chosen) == most
    assert count + sum(chosen) <= max(MOST_LINES, count)


def test_lines_go_to_rows_whose_drafts_are_accepted():
    batch = Rows(8)
    batch.choose()
    batch.lengths.observe(batch.rows, np.full(8, 4), np.where(batch.rows < 2, 4, 0))
    chosen = batch.choose()
    assert min(chosen[:2]) >= 4
    assert max(chosen[2:]) <= 1


def test_a_row_that_drafts_no_more_tries_again_in_time():
    batch = Rows(8)
    batch.choose()
    batch.observe(num_drafts=1, num_accepted=0)
    assert sum(batch.choose()) == 0
    steps = next(step for step in range(1, 1000) if sum(batch.choose()))
    assert 20 < steps < 400


def test_rows_wait_for_a_token_in_flight_while_drafts_pay():
    batch = Rows(3)
    assert batch.are_worth_waiting() == [True] * 3
    batch.lengths.record_drafts(batch.rows, np.array([True, True, False]))
    batch.lengths.observe(batch.rows, np.array([4, 4, 0]), np.array([4, 0, 0]))
    assert batch.are_worth_waiting() == [True, False, False]  # no token of the one was accepted, the other has no draft


def test_rows_of_a_large_batch_do_not_wait():
    batch = Rows(1)
    assert batch.are_worth_waiting(num_lines=32) == [True]
    assert batch.are_worth_waiting(num_lines=MOST_LINES - 1) == [False]
    batch.observe(num_drafts=4, num_accepted=4)
    assert batch.are_worth_waiting(num_lines=MOST_LINES - 1) == [True]
    assert batch.are_worth_waiting(num_lines=MOST_LINES) == [False]


def test_rows_that_did_not_wait_do_so_again_in_time():
    batch = Rows(2)
    batch.are_worth_waiting()
    batch.lengths.record_drafts(batch.rows, np.array([True, False]))
    batch.lengths.observe(batch.rows, np.array([4, 0]), np.array([0, 0]))
    waited = []
    for _ in range(40):
        waited.append(batch.are_worth_waiting())
        batch.lengths.pass_over(batch.rows)
    refused, without = zip(*waited, strict=True)
    assert without.index(True) == 7
    assert 7 < refused.index(True) < 40
    batch.generations += 1
    assert batch.are_worth_waiting() == [True, True]


def test_a_number_is_drafted_whatever_became_of_earlier_ones():
    batch = Rows(4, mode=5)
    batch.choose()
    batch.observe(num_drafts=5, num_accepted=0)
    assert batch.choose() == [5, 5, 5, 5]


def test_lines_of_a_step_are_bounded_and_shared_evenly():
    chosen = Rows(20, mode=16).choose()
    assert 20 + sum(chosen) == MOST_LINES
    assert max(chosen) - min(chosen) <= 1


def test_drafts_are_no_longer_than_rows_and_the_step_allow():
    batch = Rows(3, mode=9)
    batch.longest = np.array([0, -1, 4])
    assert batch.choose() == [0, 0, 4]
    batch.longest[:] = 9
    assert sum(batch.choose(num_more=2)) == 2
    assert sum(batch.choose(num_more=0)) == 0
    assert sum(batch.choose(num_lines=MOST_LINES)) == 0


def test_another_request_of_a_row_begins_without_experience():
    batch = Rows(8)
    first = batch.choose()
    batch.observe(num_drafts=1, num_accepted=0)
    assert batch.choose() != first
    batch.generations += 1
    assert batch.choose() == first
