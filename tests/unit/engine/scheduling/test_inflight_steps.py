"""Steps planned while another is in flight: the requests of each, and those that end meanwhile."""

from itertools import pairwise

import pytest

from rayinfer.errors import EngineDead
from rayinfer.protocols import Pause, Sleep, Wake
from support.fakes.fake_executor import drive, expected_tokens, numbers


def two_at_once(**settings):
    return drive(max_concurrent_batches=2, **settings)


def test_two_in_flight_steps_share_the_running_requests():
    driven = two_at_once()
    for number in range(5):
        driven.add(f"r{number}", numbers(5, start=number), max_tokens=8)
    driven.run()
    steps = driven.executor.names[1:]  # the first is all of the prompts
    assert all(not one & next_one for one, next_one in pairwise(steps))
    assert {len(step) for step in steps} == {2, 3}
    assert driven.tokens == {f"r{number}": expected_tokens(numbers(5, start=number), 8) for number in range(5)}


def test_a_step_is_in_flight_before_the_last_tokens_are_returned():
    driven = two_at_once()
    driven.add("a", numbers(5))
    driven.add("b", numbers(6, start=40))
    driven.step()  # both prompts are one step; nobody is left for another
    assert driven.tokens["a"]
    assert driven.tokens["b"]
    driven.step()
    assert len(driven.executor.plans) == 3  # one of each, of which the first is told
    assert sorted(map(len, driven.tokens.values())) == [1, 2]


def test_a_single_request_goes_on_alone():
    driven = two_at_once()
    driven.add("a", numbers(5), max_tokens=6)
    driven.run()
    assert driven.tokens["a"] == expected_tokens(numbers(5), 6)
    assert len(driven.executor.plans) == 6


def test_an_abort_in_flight_drops_the_token_and_reuses_the_row():
    driven = two_at_once(max_num_seqs=2)
    driven.add("a", numbers(5), max_tokens=9)
    driven.add("b", numbers(6, start=40), max_tokens=9)
    driven.step()
    driven.step()
    (leaving,) = driven.executor.names[-1]
    known = list(driven.tokens[leaving])
    driven.abort(leaving)
    driven.add("c", numbers(7, start=70), max_tokens=4)
    driven.run()
    assert driven.tokens[leaving] == known
    staying = "b" if leaving == "a" else "a"
    prompts = {"a": numbers(5), "b": numbers(6, start=40)}
    assert driven.tokens[staying] == expected_tokens(prompts[staying], 9)
    assert driven.tokens["c"] == expected_tokens(numbers(7, start=70), 4)


def test_an_engine_without_requests_still_takes_its_in_flight_step():
    driven = two_at_once()
    driven.add("a", numbers(5), max_tokens=9)
    driven.add("b", numbers(5, start=40), max_tokens=9)
    driven.step()
    driven.step()
    driven.abort("a")
    driven.abort("b")
    assert driven.engine.can_advance
    assert driven.step() == []
    assert not driven.engine.has_unfinished_requests


@pytest.mark.parametrize("level", [0, 1, 2])
def test_in_flight_steps_end_before_the_engine_sleeps(level):
    driven = two_at_once()
    for number in range(4):
        driven.add(f"r{number}", numbers(5, start=number), max_tokens=8)
    driven.step()
    driven.step()
    num_plans = len(driven.executor.plans)
    driven.engine.control(Sleep(level))
    assert len(driven.step()) == 2  # what the step under way has brought
    assert len(driven.executor.plans) == num_plans
    driven.engine.control(Wake())
    driven.run()
    assert driven.tokens == {f"r{number}": expected_tokens(numbers(5, start=number), 8) for number in range(4)}


def test_a_paused_engine_finishes_its_step_and_begins_none():
    driven = two_at_once()
    for number in range(4):
        driven.add(f"r{number}", numbers(5, start=number), max_tokens=8)
    driven.step()
    driven.step()
    driven.engine.control(Pause())
    num_plans = len(driven.executor.plans)
    assert len(driven.step()) == 2
    assert driven.step() == []
    assert len(driven.executor.plans) == num_plans


def test_an_executor_that_dies_takes_the_engine_along():
    driven = two_at_once()
    driven.add("a", numbers(5))
    driven.executor.death = EngineDead("rank 1 is lost")
    with pytest.raises(EngineDead, match="rank 1 is lost"):
        driven.step()
    assert driven.engine.stats.state == "dead"
    driven.executor.death = None
    with pytest.raises(EngineDead, match="rank 1 is lost"):
        driven.engine.check_alive()


def test_a_dead_group_is_not_taken_for_a_request_at_fault():
    driven = drive(failure=lambda context: EngineDead("rank 1 is lost"))
    driven.add("a", numbers(5))
    driven.add("b", numbers(5, start=40))
    with pytest.raises(EngineDead, match="rank 1 is lost"):
        driven.step()
    assert len(driven.executor.plans) == 1
    assert driven.ends == {}


@pytest.mark.parametrize("level", [0, 1, 2])
def test_the_last_tokens_before_a_sleep_are_reported(level):
    driven = two_at_once()
    driven.add("a", numbers(5), max_tokens=2)
    driven.add("b", numbers(6, start=40), max_tokens=2)
    driven.step()
    driven.step()  # one of them ends with it; the other's last step is under way
    assert driven.engine.has_unfinished_requests
    driven.engine.control(Sleep(level))
    assert driven.engine.has_unfinished_requests
    assert driven.engine.can_advance
    driven.step()
    assert {name: len(tokens) for name, tokens in driven.tokens.items()} == {"a": 2, "b": 2}
    assert not driven.engine.has_unfinished_requests


@pytest.mark.parametrize("num_steps", [1, 2])
def test_a_request_aborted_beside_a_sleep_is_reported_once(num_steps):
    driven = two_at_once()
    driven.add("a", numbers(5), max_tokens=2)
    driven.add("b", numbers(6, start=40), max_tokens=2)
    for _ in range(num_steps):
        driven.step()
    driven.engine.control(Sleep(1))
    ends = [driven.engine.abort(name) for name in ("a", "b")]
    assert all(end is None or end.finish_reason is not None for end in ends)
    assert any(end is not None for end in ends)
    assert not driven.engine.has_unfinished_requests
    assert driven.engine.step() == []


def test_requests_of_a_step_that_is_interrupted_have_their_turn_again():
    interruptions = iter([None, KeyboardInterrupt()])
    driven = two_at_once(failure=lambda context: next(interruptions, None))
    driven.add("a", numbers(5), max_tokens=4)
    driven.step()
    with pytest.raises(KeyboardInterrupt):
        driven.step()
    driven.run()
    assert driven.tokens["a"] == expected_tokens(numbers(5), 4)
