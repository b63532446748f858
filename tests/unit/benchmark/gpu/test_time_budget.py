"""Time budget of a run, with a fake clock."""

import pytest

from rayinfer.benchmark.gpu.time_budget import FASTEST, SLOWEST, Deadline, Estimate, OutOfTime, Timetable


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def timetable_of(clock, limit_s, **works):
    """Works by their (open_s, run_s, num_runs)."""
    estimates = {
        name: Estimate(open_s=open_s, run_s=run_s, num_runs=num_runs)
        for name, (open_s, run_s, num_runs) in works.items()
    }
    return Timetable(Deadline(limit_s, clock), estimates)


def measure(timetable, clock, name, *, open_s, run_s):
    """Let a work take so long; returns how many runs it made."""
    work_time = timetable.begin(name)
    clock.now += open_s
    num_runs = 0
    for number in work_time.runs():
        assert number == num_runs
        clock.now += run_s
        num_runs += 1
    return num_runs


def test_works_that_keep_to_their_estimates_are_run_as_often_as_wanted(clock):
    timetable = timetable_of(clock, 70, first=(10, 5, 3), second=(20, 5, 3))
    assert measure(timetable, clock, "first", open_s=10, run_s=5) == 3
    assert measure(timetable, clock, "second", open_s=20, run_s=5) == 3
    assert timetable.deadline.remaining_s == pytest.approx(10)


def test_a_work_is_repeated_less_often_so_that_each_one_behind_it_has_a_run(clock):
    timetable = timetable_of(clock, 49, first=(10, 5, 3), second=(20, 5, 3))
    work_time = timetable.begin("first")
    clock.now += 10
    for _ in work_time.runs():
        clock.now += 5
    assert work_time.shortfall == "2 of 3 runs"  # a third would leave 24 s, and the second work needs 25
    assert measure(timetable, clock, "second", open_s=20, run_s=5) == 1


def test_what_cannot_have_a_run_is_left_out_and_nothing_is_kept_for_it(clock):
    timetable = timetable_of(clock, 30, first=(10, 5, 3), large=(90, 20, 1), small=(1, 1, 1))
    assert measure(timetable, clock, "first", open_s=10, run_s=5) == 3
    with pytest.raises(OutOfTime, match="it needs about 110 s, and 5 s were left"):
        timetable.begin("large")
    assert measure(timetable, clock, "small", open_s=1, run_s=1) == 1


def test_what_works_took_is_expected_of_the_next_ones(clock):
    timetable = timetable_of(clock, 100, first=(20, 20, 1), second=(60, 20, 1))
    measure(timetable, clock, "first", open_s=5, run_s=5)
    assert timetable.pace == pytest.approx(0.25)
    timetable.begin("second")  # for 20 s instead of 80

    slow = timetable_of(clock, 100, first=(10, 10, 1), second=(10, 10, 1))
    measure(slow, clock, "first", open_s=30, run_s=30)
    with pytest.raises(OutOfTime, match="it needs about 60 s, and 40 s were left"):
        slow.begin("second")


def test_no_work_says_everything_about_the_others(clock):
    timetable = timetable_of(clock, 1e6, fast=(100, 100, 1), slow=(1, 1, 1))
    measure(timetable, clock, "fast", open_s=0, run_s=0)
    assert timetable.pace == FASTEST
    measure(timetable, clock, "slow", open_s=1e4, run_s=1e4)
    assert timetable.pace == SLOWEST


def test_runs_that_take_longer_than_estimated_end_a_work_early(clock):
    timetable = timetable_of(clock, 100, only=(10, 5, 10))
    assert measure(timetable, clock, "only", open_s=10, run_s=40) == 2


def test_a_work_whose_time_went_into_its_preparation_is_not_run(clock):
    timetable = timetable_of(clock, 100, only=(10, 20, 3))
    work_time = timetable.begin("only")
    clock.now += 95
    with pytest.raises(OutOfTime, match="nothing is left of the time"):
        list(work_time.runs())
    assert work_time.shortfall == ""


def test_a_deadline_that_has_passed_is_noticed(clock):
    deadline = Deadline(60, clock)
    clock.now += 59.5
    deadline.check()
    clock.now += 0.5
    with pytest.raises(OutOfTime, match="the 60 s of this run are over"):
        deadline.check()
