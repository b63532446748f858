"""Who gives way when rows or blocks are short, and how it comes back."""

import pytest

from fake_executor import drive, expected_tokens, numbers


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
    entered = driven.executor.entered[0]
    assert (len(entered.prompt_token_ids), len(entered.output_token_ids)) == (10, 7)
    assert driven.engine.stats.prompt_tokens_total == 34
    assert driven.ends["low"].num_cached_tokens == 0  # found when it first ran


def preempted_by_urgent(driven):
    """Let an arrival take one request's row and say whose."""
    before = driven.running()
    driven.add("urgent", numbers(4, 40), max_tokens=2, priority=-1)
    driven.step()
    (victim,) = before - driven.running()
    driven.run()
    return victim


def test_the_lowest_priority_gives_way_first():
    driven = drive(max_num_seqs=3)
    for request_id, priority in {"a": 1, "b": 3, "c": 2}.items():
        driven.add(request_id, numbers(5, priority), max_tokens=9, priority=priority)
    driven.step()
    assert preempted_by_urgent(driven) == "b"


def test_among_equal_priorities_the_one_with_most_time_gives_way():
    driven = drive(max_num_seqs=3)
    for start, (request_id, timeout_s) in enumerate({"a": 30.0, "b": 60.0, "c": 40.0}.items()):
        driven.add(request_id, numbers(5, start), max_tokens=9, timeout_s=timeout_s)
    driven.step()
    assert preempted_by_urgent(driven) == "b"


def test_among_equals_the_one_with_the_least_work_done_gives_way():
    driven = drive(max_num_seqs=3)
    for start, (request_id, length) in enumerate({"a": 9, "b": 5, "c": 7}.items()):
        driven.add(request_id, numbers(length, start), max_tokens=9)
    driven.step()
    assert preempted_by_urgent(driven) == "b"


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


def test_an_older_request_that_gave_way_does_not_take_the_place_back_from_its_equals():
    driven = drive(num_blocks=9)
    driven.add("older", numbers(6), max_tokens=20)
    driven.clock.now += 1
    driven.add("younger", numbers(22, 1), max_tokens=12)
    driven.run()
    assert list(driven.ends) == ["younger", "older"]  # it had less to lose
    assert driven.engine.stats.num_preemptions_total == 1
    assert driven.tokens["older"] == expected_tokens(numbers(6), 20)


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
    (entered,) = driven.executor.plans[-1].entered
    assert entered.prompt_token_ids.tolist() == numbers(6, 1)
    assert driven.engine.stats.num_preemptions_total == 1
    driven.run()  # the executor checks that every row's history is its request's own
    assert driven.tokens == {"low": expected_tokens(numbers(6), 8), "high": expected_tokens(numbers(6, 1), 3)}


def test_nobody_is_sent_away_when_that_would_not_make_enough_room():
    driven = drive(num_blocks=10)
    driven.add("equal", numbers(24), max_tokens=4)
    driven.add("low", numbers(4, 1), max_tokens=4, priority=1)
    driven.step()
    driven.add("large", numbers(20, 2), max_tokens=1)
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
