"""Preemption when rows or blocks run out, and resumption."""

from dataclasses import dataclass

import pytest

from support.fakes.fake_executor import drive, expected_tokens, numbers


@dataclass(frozen=True)
class Running:
    """A request among which one has to give way."""

    name: str
    priority: int = 0
    timeout_s: float | None = None
    length: int = 5


def test_a_request_that_gave_way_keeps_its_prompts_boundary_and_resumes_from_its_cached_prefix():
    driven = drive(num_blocks=10)
    driven.add("low", numbers(10), max_tokens=20, priority=1)
    for _ in range(7):
        driven.step()
    assert len(driven.tokens["low"]) == 7  # 17 tokens, 16 of them in the cache
    driven.add("high", numbers(24, 1), max_tokens=1)
    driven.step()
    assert driven.running() == {"high"}
    assert driven.engine.stats.num_preemptions_total == 1
    before = driven.executor.num_tokens_computed
    driven.run()
    assert driven.tokens == {"low": expected_tokens(numbers(10), 20), "high": expected_tokens(numbers(24, 1), 1)}
    assert driven.reasons() == {"low": "length", "high": "length"}
    assert driven.executor.num_tokens_computed - before == 13  # none of the 16 is computed again
    new_request = driven.executor.new_requests[0]
    assert (len(new_request.prompt_token_ids), len(new_request.output_token_ids)) == (10, 7)
    assert driven.engine.stats.prompt_tokens_total == 34
    assert driven.ends["low"].num_cached_tokens == 0  # found when it first ran


NEVER = None

# What matters first comes first; in every case "b" gives way.
WHO_GIVES_WAY = {
    "the lowest priority, whatever else": [
        Running("a", priority=1, timeout_s=NEVER, length=5),
        Running("b", priority=3, timeout_s=1.0, length=9),
        Running("c", priority=2, timeout_s=NEVER, length=5),
    ],
    "of these, whoever has most time": [
        Running("a", priority=3, timeout_s=30.0, length=5),
        Running("b", priority=3, timeout_s=60.0, length=9),
        Running("c", priority=2, timeout_s=90.0, length=5),
    ],
    "who has no deadline has most time": [
        Running("a", timeout_s=1e6, length=5),
        Running("b", timeout_s=NEVER, length=9),
    ],
    "of these, whoever has least to lose": [
        Running("a", timeout_s=60.0, length=9),
        Running("b", timeout_s=60.0, length=6),
        Running("c", timeout_s=60.0, length=7),
        Running("d", timeout_s=50.0, length=5),
    ],
    "of these, whoever came last": [Running("a"), Running("b")],
}


@pytest.mark.parametrize("running", WHO_GIVES_WAY.values(), ids=WHO_GIVES_WAY)
def test_preemption_follows_priority_then_slack_then_lost_work(running):
    driven = drive(max_num_seqs=len(running))
    for start, each in enumerate(running):
        driven.add(
            each.name, numbers(each.length, start), max_tokens=9, priority=each.priority, timeout_s=each.timeout_s
        )
    driven.step()
    before = driven.running()
    assert len(before) == len(running)
    driven.add("urgent", numbers(4, 40), max_tokens=2, priority=-1)
    driven.step()
    assert before - driven.running() == {"b"}
    assert driven.engine.stats.num_preemptions_total == 1  # "b" at once, not somebody who then took its row
    driven.run()


@pytest.mark.parametrize("budget", [3, 64])
def test_an_urgent_arrival_takes_a_row_even_when_decoding_takes_every_token(budget):
    driven = drive(max_num_seqs=3, budget=budget)
    for start in range(3):
        driven.add(f"r{start}", numbers(2, start), max_tokens=30)
    for _ in range(3):
        driven.step()
    driven.add("urgent", numbers(3, 9), max_tokens=2, priority=-1)
    driven.step()
    assert "urgent" in driven.running()
    driven.run()
    assert driven.tokens["urgent"] == expected_tokens(numbers(3, 9), 2)
    assert all(driven.tokens[f"r{start}"] == expected_tokens(numbers(2, start), 30) for start in range(3))


def test_an_urgent_arrival_does_not_wait_for_a_long_prompt_of_lower_priority():
    driven = drive(budget=8)
    driven.add("long", numbers(60), priority=1)
    driven.step()
    driven.add("urgent", numbers(7, 1), max_tokens=1)
    driven.step()
    assert driven.reasons() == {"urgent": "length"}
    driven.run()
    assert driven.tokens["long"] == expected_tokens(numbers(60), 4)


def test_equal_priorities_never_take_each_others_place():
    driven = drive(max_num_seqs=1)
    driven.add("first", numbers(5), max_tokens=9)
    driven.step()
    driven.add("second", numbers(5, 1), max_tokens=9)
    driven.run()
    assert driven.engine.stats.num_preemptions_total == 0
    assert list(driven.ends) == ["first", "second"]


def test_the_first_of_all_never_gives_way_for_want_of_blocks_even_if_it_has_least_to_lose():
    driven = drive(num_blocks=9)
    driven.add("first", numbers(6), max_tokens=20, priority=1)
    driven.clock.now += 11
    driven.add("second", numbers(22, 1), max_tokens=12)
    driven.run()
    assert list(driven.ends) == ["first", "second"]
    assert driven.engine.stats.num_preemptions_total == 1
    assert driven.tokens["second"] == expected_tokens(numbers(22, 1), 12)


def test_the_earliest_is_preempted_if_its_priority_is_lower():
    driven = drive(num_blocks=9)
    driven.add("low", numbers(6), max_tokens=20, priority=1)
    driven.add("high", numbers(14, 1), max_tokens=12)
    driven.run()
    assert list(driven.ends) == ["high", "low"]
    assert driven.engine.stats.num_preemptions_total == 1


def test_requests_that_outgrow_the_pool_together_finish_one_after_the_other_without_ping_pong():
    driven = drive(num_blocks=10)
    for start in range(3):
        driven.add(f"r{start}", numbers(8, start), max_tokens=24)
    driven.run()
    assert driven.tokens == {f"r{start}": expected_tokens(numbers(8, start), 24) for start in range(3)}
    assert 0 < driven.engine.stats.num_preemptions_total <= 6


def test_a_preempted_row_is_used_again_in_the_same_plan():
    driven = drive(max_num_seqs=1)
    driven.add("low", numbers(6), max_tokens=8, priority=1, repetition_penalty=1.5)
    driven.step()
    driven.step()
    driven.add("high", numbers(6, 1), max_tokens=3)
    driven.step()
    (new_request,) = driven.executor.plans[-1].new_requests
    assert new_request.prompt_token_ids.tolist() == numbers(6, 1)
    assert driven.engine.stats.num_preemptions_total == 1
    driven.run()  # the executor checks that every row's history is its request's own
    assert driven.tokens == {"low": expected_tokens(numbers(6), 8), "high": expected_tokens(numbers(6, 1), 3)}


def test_no_preemption_that_frees_too_little():
    driven = drive(num_blocks=10)
    driven.add("equal", numbers(24), max_tokens=4)
    driven.add("low", numbers(4, 1), max_tokens=4, priority=1)
    driven.step()
    driven.add("large", numbers(20, 2), max_tokens=1)
    driven.step()
    assert driven.running() == {"equal", "low"}
    driven.run()
    assert driven.engine.stats.num_preemptions_total == 0


def test_blocks_that_several_share_make_room_once():
    driven = drive(num_blocks=32, max_num_seqs=16, budget=256)
    driven.add("important", numbers(40), max_tokens=8, priority=-9)
    for index in range(4):  # they share ten blocks and have one each
        driven.add(f"low {index}", numbers(40, 1) + numbers(2, index), max_tokens=4, priority=5)
    driven.step()
    driven.step()
    driven.add("urgent", numbers(100, 2), max_tokens=2, priority=-5)
    driven.step()
    assert len(driven.running()) == 5
    assert driven.engine.stats.num_preemptions_total == 0
    driven.run()
    assert driven.tokens["urgent"] == expected_tokens(numbers(100, 2), 2)


def test_blocks_shared_with_running_requests_need_no_memory():
    driven = drive(num_blocks=32, max_num_seqs=16)
    driven.add("important", numbers(80), max_tokens=20, priority=-5)
    driven.step()
    driven.add("low", numbers(30, 1), max_tokens=8, priority=5)
    driven.step()
    driven.add("urgent", numbers(80) + numbers(10, 2), max_tokens=2, priority=-5)
    driven.step()
    assert driven.running() == {"important", "urgent"}
    driven.run()
    assert driven.tokens["low"] == expected_tokens(numbers(30, 1), 8)


def test_no_preemption_for_an_arrival_that_leaves_nothing_free():
    driven = drive(num_blocks=10)
    driven.add("equal", numbers(6), max_tokens=4)
    driven.add("low", numbers(19, 1), max_tokens=2, priority=1)
    driven.step()
    driven.add("large", numbers(32, 2), max_tokens=1)  # eight blocks: all but those of "equal"
    driven.step()
    assert driven.running() == {"equal", "low"}
    driven.run()
    assert driven.engine.stats.num_preemptions_total == 0


def test_a_request_whose_next_token_has_no_block_gives_way_itself_if_it_matters_least():
    driven = drive(num_blocks=6)
    driven.add("high", numbers(11), max_tokens=9)
    driven.add("low", numbers(7, 1), max_tokens=9, priority=1)
    driven.run()
    assert driven.engine.stats.num_preemptions_total >= 1
    assert list(driven.ends) == ["high", "low"]
    assert driven.tokens["low"] == expected_tokens(numbers(7, 1), 9)


def test_a_pool_that_holds_just_one_request_serves_all_of_them():
    driven = drive(num_blocks=4)
    for start in range(4):
        driven.add(f"r{start}", numbers(9, start), max_tokens=None)
    driven.run()
    assert driven.tokens == {f"r{start}": expected_tokens(numbers(9, start), 7) for start in range(4)}


def test_a_newcomer_is_not_let_in_only_to_be_sent_away_by_the_next_token():
    driven = drive(num_blocks=4)
    driven.add("old", numbers(7), max_tokens=3)
    driven.step()
    driven.add("new", numbers(8, 1), max_tokens=4)
    driven.run()
    assert driven.engine.stats.num_preemptions_total == 0
