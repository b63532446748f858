"""Order of admission: requests that overtake one that does not fit, for a limited time, without starvation."""

import gc
from itertools import takewhile

import pytest

from rayinfer.engine.scheduling.request import Request
from rayinfer.protocols import Pause, Resume
from support.fakes.fake_executor import drive, expected_tokens, numbers
from support.kernels.work_count import count_bytecodes


def crowded(**settings):
    """A pool of 16 blocks, 10 of them taken by a request that runs for long, and a waiting one that needs 12."""
    driven = drive(num_blocks=16, max_num_seqs=16, **settings)
    driven.add("old", numbers(37), max_tokens=25)
    driven.step()
    driven.clock.now += 1
    driven.add("large", numbers(46, 1), max_tokens=2)
    driven.step()
    driven.clock.now += 1
    assert driven.running() == {"old"}
    return driven


# Passing


def test_small_requests_pass_one_that_does_not_fit_yet():
    driven = crowded()
    driven.add("small", numbers(3, 2), max_tokens=2)
    driven.add("also small", numbers(5, 3), max_tokens=2)
    driven.step()
    assert driven.running() == {"old", "small", "also small"}
    driven.run()
    assert list(driven.ends) == ["small", "also small", "old", "large"]
    assert driven.tokens["large"] == expected_tokens(numbers(46, 1), 2)


def test_several_that_do_not_fit_delay_no_other():
    driven = crowded()
    for start in range(3):
        driven.add(f"large too {start}", numbers(30 + 7 * start, start + 4), max_tokens=2)
    driven.add("small", numbers(3, 2), max_tokens=2)
    driven.step()
    assert driven.running() == {"old", "small"}
    driven.run()
    assert list(driven.ends)[:2] == ["small", "old"]


def test_a_request_lets_others_pass_until_they_have_taken_as_many_blocks_as_it_needs():
    driven = crowded()
    for index in range(30):  # of one block each, one step long
        driven.add(f"small {index}", numbers(2, 2 + index), max_tokens=1)
    driven.run()
    steps = list(takewhile(lambda names: "large" not in names, driven.executor.names))
    assert len(set.union(*steps)) == 12 + 1  # twelve of them and "old"
    assert driven.tokens["large"] == expected_tokens(numbers(46, 1), 2)


def test_earlier_requests_do_not_count_as_passing():
    driven = drive(num_blocks=40, max_num_seqs=16)
    driven.add("old", numbers(37), max_tokens=25)
    driven.add("large", numbers(124, 1), max_tokens=2)
    for index in range(4):  # eight blocks each time, while "large" is known not to fit
        driven.add(f"urgent {index}", numbers(2, 2 + index), max_tokens=2, priority=-1)
        driven.step()
        driven.add(f"urgent too {index}", numbers(31, 20 + index), max_tokens=1, priority=-1)
        driven.step()
    driven.add("small", numbers(2, 99), max_tokens=1)
    driven.step()
    assert driven.running() == {"old", "small"}


def test_a_stream_of_small_requests_does_not_keep_a_large_one_out():
    driven = crowded()
    for index in range(100):
        driven.add(f"small {index}", numbers(6, index), max_tokens=9)
        driven.step()
        driven.clock.now += 0.1
        if "large" in driven.running():
            break
    assert "large" in driven.running()
    assert index <= 25  # "old" needs 25 steps; those that passed were over by then
    driven.run()


def test_an_aborted_request_that_did_not_fit_leaves_nothing_behind():
    driven = crowded()
    for index in range(20):
        driven.add(f"small {index}", numbers(2, 2 + index), max_tokens=1)
    driven.step()  # six fit beside the old one, with a block to spare for it
    driven.step()
    driven.step()
    driven.abort("large")
    driven.step()
    assert len(driven.running()) > 1
    driven.run()


def test_a_row_that_is_missing_is_no_reason_to_pass():
    driven = drive(max_num_seqs=1)
    driven.add("runs", numbers(5), max_tokens=3)
    driven.step()
    driven.add("large", numbers(40, 1), max_tokens=1)
    driven.add("small", numbers(3, 2), max_tokens=1)
    driven.run()
    assert list(driven.ends) == ["runs", "large", "small"]


@pytest.mark.parametrize("settings", [{"num_blocks": 16}, {"num_blocks": 64, "max_num_seqs": 1}], ids=str)
def test_planning_a_step_costs_the_same_however_many_wait(settings):
    counts = []
    for size in (20, 2000):
        driven = drive(**settings)
        driven.add("old", numbers(41), max_tokens=20)
        driven.step()
        for index in range(size):
            driven.add(f"waits {index}", numbers(40, index), max_tokens=1)
        driven.step()
        driven.step()  # tokens 43 and 44: no new block
        counts.append(count_bytecodes(driven.scheduler.plan))
    assert counts[0] == counts[1]


# Nobody waits for ever


def test_a_request_of_low_priority_has_its_turn_under_a_constant_stream_of_high_priority():
    driven = drive(max_num_seqs=2)
    driven.add("low", numbers(9), max_tokens=3, priority=3)
    for index in range(2000):
        driven.add(f"high {index}", numbers(4, index), max_tokens=1)
        driven.add(f"high too {index}", numbers(4, index + 50), max_tokens=1)
        driven.step()
        driven.clock.now += 0.05
        if "low" in driven.ends:
            break
    waited_s = driven.clock.now - 1000
    assert 29 < waited_s < 32  # three levels of ten seconds


def test_a_request_of_low_priority_gives_way_until_it_has_waited_longest_and_then_no_more():
    driven = drive(num_blocks=16, max_num_seqs=6, budget=16)
    driven.add("low", numbers(19), max_tokens=42, priority=1, trace=True)
    for index in range(1000):
        if driven.engine.num_unfinished_requests < 20:
            driven.add(f"high {index}", numbers(3, index), max_tokens=13)
        driven.step()
        driven.clock.now += 0.5
        if "low" in driven.ends:
            break
    assert driven.tokens["low"] == expected_tokens(numbers(19), 42)
    assert 1 <= sum(event.name == "preempted" for event in driven.ends["low"].trace) <= 5


# Waiting costs nothing


@pytest.mark.parametrize("kind", ["waits for a row", "waits for blocks", "is paused"])
def test_a_waiting_request_is_aborted_without_a_prefill(kind):
    driven = drive(num_blocks=16, max_num_seqs=1 if kind == "waits for a row" else 4)
    driven.add("runs", numbers(37), max_tokens=9)
    driven.step()
    if kind == "is paused":
        driven.engine.control(Pause())
    driven.add("waiting", numbers(46, 1))
    driven.step()
    driven.abort("waiting")
    driven.engine.control(Resume())
    driven.run()
    assert driven.reasons() == {"runs": "length", "waiting": "abort"}
    assert not any("waiting" in names for names in driven.executor.names)


def test_a_request_that_is_over_is_gone_without_the_garbage_collector():
    driven = crowded()
    driven.add("passes", numbers(3, 2), max_tokens=2)
    gc.collect()  # those of other tests
    gc.disable()
    try:
        driven.run()
        left = [each.request_id for each in gc.get_objects() if type(each) is Request]
    finally:
        gc.enable()
    assert not {"old", "large", "passes"} & set(left)
