"""Drafts where a step is planned while another is in flight: in micro-batches, and in overlapped steps."""

from itertools import pairwise

import pytest

from rayinfer.protocols import Pause, Resume, Sleep, Wake
from support.fakes.fake_executor import EOS, drive, expected_tokens, mixed_answer, numbers
from unit.engine.scheduling.test_drafts import Guesses

MICRO_BATCHES, OVERLAPPED = {"max_concurrent_batches": 2}, {"supports_async_scheduling": True}
BOTH = pytest.mark.parametrize("steps", [MICRO_BATCHES, OVERLAPPED], ids=["micro-batches", "overlapped"])


def prompt(number):
    return numbers(6, 10 + number)


def ending(length):
    """Answer with the end token as soon as a request has so many tokens."""
    return lambda context: EOS if len(context) == length else mixed_answer(context)


def add_all(driven, count, **params):
    for number in range(count):
        driven.add(f"r{number}", prompt(number), **params)


def check_all(driven, count, num_tokens):
    for number in range(count):
        assert driven.tokens[f"r{number}"] == expected_tokens(prompt(number), num_tokens)


def test_micro_batches_have_drafts():
    driven = drive(**MICRO_BATCHES, drafter=Guesses(3), speculation=3)
    add_all(driven, 4, max_tokens=13)
    driven.run()
    check_all(driven, 4, 13)
    assert len(driven.executor.plans) == 1 + 2 * 3  # the prompts, and four tokens a step for each half
    assert all(not one & next_one for one, next_one in pairwise(driven.executor.names[1:]))
    assert driven.executor.num_tokens_computed == 4 * (6 + 12)  # nothing twice
    stats = driven.engine.stats
    assert stats.draft_tokens_total == stats.accepted_draft_tokens_total == 4 * 9


def test_a_row_with_a_draft_in_flight_is_in_no_other_step():
    driven = drive(**OVERLAPPED, drafter=Guesses(3), speculation="off")
    driven.add("drafts", prompt(0), max_tokens=13, speculation=3)
    driven.add("overlaps", prompt(1), max_tokens=13)
    driven.run()
    assert driven.tokens["drafts"] == expected_tokens(prompt(0), 13)
    assert driven.tokens["overlaps"] == expected_tokens(prompt(1), 13)
    assert driven.executor.names == [
        *[{"drafts", "overlaps"}, {"overlaps"}] * 4,  # the one waits while its tokens are in flight
        *[{"overlaps"}] * 5,
    ]
    assert driven.engine.stats.accepted_draft_tokens_total == 9
    assert [plan.uses_last_sampled.tolist() for plan in driven.executor.plans[2:4]] == [[False, True], [True]]


def test_overlapped_steps_are_fewer_with_drafts():
    driven = drive(**OVERLAPPED, drafter=Guesses(3), speculation=3)
    add_all(driven, 4, max_tokens=13)
    driven.run()
    check_all(driven, 4, 13)
    assert len(driven.executor.plans) == 1 + 3
    assert driven.executor.num_tokens_computed == 4 * (6 + 12)


@pytest.mark.parametrize("wrong", [[], [1, 1, 1]], ids=["no drafts", "refused drafts"])
def test_rows_without_accepted_drafts_overlap_and_try_again(wrong):
    guesses = Guesses(0, wrong=wrong)
    driven = drive(**OVERLAPPED, drafter=guesses, speculation=3, num_blocks=64)
    driven.add("a", prompt(0), max_tokens=100)
    driven.add("off", prompt(1), max_tokens=100, speculation="off")
    driven.run()
    assert driven.tokens["a"] == expected_tokens(prompt(0), 100)
    num_missed = sum(names == {"off"} for names in driven.executor.names)
    assert 3 <= len(guesses.asked) <= 24
    assert num_missed <= 2 * len(guesses.asked)


def test_a_row_with_room_for_one_more_token_overlaps():
    driven = drive(**OVERLAPPED, drafter=Guesses(3), speculation=3)
    driven.add("a", prompt(0), max_tokens=2)
    driven.add("b", prompt(1), max_tokens=4)
    driven.run()
    assert driven.executor.names[:2] == [{"a", "b"}, {"a"}]  # a draft of it could not be used
    assert driven.tokens["a"] == expected_tokens(prompt(0), 2)


def until_drafts_are_in_flight(driven, name):
    driven.step()
    driven.step()
    while name not in driven.executor.names[-1]:  # which the engine reads in its next step
        driven.step()
    assert driven.executor.plans[-1].num_drafts is not None


@BOTH
def test_a_reused_row_has_a_draft_of_its_own_in_flight(steps):
    driven = drive(**steps, drafter=Guesses(2), speculation=3, max_num_seqs=2)
    driven.add("before", prompt(2), max_tokens=8)
    driven.run()
    driven.add("leaves", prompt(0), max_tokens=30)
    driven.add("stays", prompt(1), max_tokens=30, speculation="off")
    until_drafts_are_in_flight(driven, "leaves")
    driven.abort("leaves")
    whole = [*prompt(2), *driven.tokens["before"]]
    driven.add("cached", whole[:9], max_tokens=2)  # all but its last token are cached: its first step has a draft
    num_drafts = driven.engine.stats.num_drafts_total
    driven.run()
    assert driven.tokens["cached"] == whole[9:11]
    assert driven.tokens["stays"] == expected_tokens(prompt(1), 30)
    assert driven.engine.stats.num_drafts_total == num_drafts + 1


@BOTH
def test_an_end_token_behind_drafts_in_flight_ends_the_request(steps):
    driven = drive(**steps, drafter=Guesses(6, answer=ending(10)), speculation=6, answer=ending(10))
    add_all(driven, 3, max_tokens=20)
    driven.run()
    for number in range(3):
        assert driven.tokens[f"r{number}"] == [*expected_tokens(prompt(number), 4), EOS]
    assert driven.engine.stats.generation_tokens_total == 3 * 5


@BOTH
@pytest.mark.parametrize("end", ["abort", "timeout"])
def test_drafts_of_an_aborted_request_are_dropped_and_its_row_reused(end, steps):
    driven = drive(**steps, drafter=Guesses(2, wrong=[1]), speculation=3, max_num_seqs=2)
    driven.add("a", prompt(0), max_tokens=30, timeout_s=5.0)
    driven.add("b", prompt(1), max_tokens=30, speculation="off")
    until_drafts_are_in_flight(driven, "a")
    known = list(driven.tokens["a"])
    if end == "abort":
        driven.abort("a")
    else:
        driven.clock.now += 6.0
    driven.add("c", prompt(2), max_tokens=9)
    driven.run()
    assert driven.reasons()["a"] == end
    assert driven.tokens["a"] == expected_tokens(prompt(0), len(driven.tokens["a"]))
    assert len(driven.tokens["a"]) <= len(known) + 3
    assert driven.tokens["b"] == expected_tokens(prompt(1), 30)
    assert driven.tokens["c"] == expected_tokens(prompt(2), 9)


@BOTH
@pytest.mark.parametrize("num_offload_blocks", [0, 8])
def test_requests_with_drafts_in_flight_are_preempted(num_offload_blocks, steps):
    blocks = {"num_blocks": 9, "block_size": 4, "num_offload_blocks": num_offload_blocks}
    driven = drive(**steps, **blocks, drafter=Guesses(2, wrong=[1]), speculation=4)
    add_all(driven, 4, max_tokens=14)
    driven.run()
    check_all(driven, 4, 14)
    stats = driven.engine.stats
    assert stats.num_preemptions_total > 0
    assert stats.accepted_draft_tokens_total > 0
    assert stats.generation_tokens_total == 4 * 14


@BOTH
def test_an_urgent_arrival_takes_the_row_of_drafts_in_flight(steps):
    driven = drive(**steps, drafter=Guesses(3), speculation=3, max_num_seqs=2)
    driven.add("low", prompt(0), max_tokens=30, priority=5)
    driven.add("other", prompt(1), max_tokens=30, speculation="off")
    for _ in range(4):
        driven.step()
    driven.add("high", prompt(2), max_tokens=9)
    driven.run()
    assert driven.engine.stats.num_preemptions_total == 1
    for name, number, num_tokens in (("low", 0, 30), ("other", 1, 30), ("high", 2, 9)):
        assert driven.tokens[name] == expected_tokens(prompt(number), num_tokens)


@BOTH
def test_a_step_that_fails_beside_another_is_computed_again_without_drafts(steps):
    failures = [RuntimeError("once")]

    def failure(context):
        return failures.pop() if failures and len(context) == 12 else None

    driven = drive(**steps, drafter=Guesses(3), speculation=3, failure=failure)
    add_all(driven, 3, max_tokens=16)
    driven.add("off", prompt(3), max_tokens=16, speculation="off")
    driven.run()
    assert not failures
    check_all(driven, 3, 16)
    assert driven.tokens["off"] == expected_tokens(prompt(3), 16)


@BOTH
@pytest.mark.parametrize("count", [1, 3])
def test_a_poisoned_request_with_drafts_fails_alone(count, steps):
    def failure(context):
        return RuntimeError("bad") if len(context) == 9 and context[:6] == prompt(0) else None

    driven = drive(**steps, drafter=Guesses(3), speculation=3, failure=failure)
    add_all(driven, count, max_tokens=16)
    driven.run()
    assert driven.reasons() == {"r0": "error"} | {f"r{number}": "length" for number in range(1, count)}
    assert driven.tokens["r0"] == expected_tokens(prompt(0), 3)  # as far as it would get without drafts
    for number in range(1, count):
        assert driven.tokens[f"r{number}"] == expected_tokens(prompt(number), 16)


@BOTH
def test_requests_of_an_interrupted_step_with_drafts_are_sent_again(steps):
    interruptions = [KeyboardInterrupt()]

    def failure(context):
        return interruptions.pop() if interruptions and len(context) == 9 else None

    driven = drive(**steps, drafter=Guesses(3), speculation=3, failure=failure)
    add_all(driven, 3, max_tokens=12)
    driven.add("off", prompt(3), max_tokens=12, speculation="off")
    with pytest.raises(KeyboardInterrupt):
        driven.run()
    driven.run()
    check_all(driven, 3, 12)
    assert driven.tokens["off"] == expected_tokens(prompt(3), 12)


@BOTH
@pytest.mark.parametrize("level", [0, 1, 2])
def test_drafts_in_flight_are_read_before_the_engine_sleeps(level, steps):
    driven = drive(**steps, drafter=Guesses(2, wrong=[1]), speculation=3)
    add_all(driven, 3, max_tokens=16)
    driven.add("off", prompt(3), max_tokens=16, speculation="off")
    for _ in range(3):
        driven.step()
        driven.engine.control(Pause())
        driven.step()
        driven.engine.control(Resume())
        driven.step()
        driven.engine.control(Sleep(level))
        driven.step()
        driven.engine.control(Wake())
    driven.run()
    check_all(driven, 3, 16)
    assert driven.tokens["off"] == expected_tokens(prompt(3), 16)
    assert driven.engine.stats.accepted_draft_tokens_total > 0


@BOTH
def test_blocks_of_drafts_in_flight_are_stored_once_accepted(steps):
    driven = drive(**steps, drafter=Guesses(3, wrong=[1]), speculation=4, block_size=4, num_blocks=64)
    add_all(driven, 2, max_tokens=12)
    driven.run()
    check_all(driven, 2, 12)
    whole = [*prompt(0), *driven.tokens["r0"]]
    driven.add("again", whole, max_tokens=3)
    driven.run()
    assert driven.tokens["again"] == expected_tokens(whole, 3)
    assert driven.ends["again"].num_cached_tokens == 16  # of 18, the last of which was never an input
