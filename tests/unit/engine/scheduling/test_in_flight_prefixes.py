"""Requests of one prefix that come together: one computes it, the others wait for it."""

from itertools import groupby

import pytest

from support.fakes.fake_executor import drive, expected_tokens, numbers

PROMPT = numbers(33)  # eight full blocks and one token
# With one row and chunks smaller than a block, a twin stays aside for several steps.
SIZES = pytest.mark.parametrize("sizes", [{"budget": 8}, {"budget": 1, "max_num_seqs": 1}], ids=str)


def duplicates(count, **settings):
    driven = drive(**settings)
    for index in range(count):
        driven.add(f"twin {index}", PROMPT, max_tokens=2)
    return driven


@pytest.mark.parametrize("budget", [64, 16, 8, 5])
def test_eight_duplicates_of_one_step_share_one_prefill(budget):
    driven = duplicates(8, budget=budget)
    driven.run()
    num_prefill = driven.executor.num_tokens_computed - 8  # each decodes one token
    assert num_prefill == len(PROMPT) + 7
    assert all(tokens == expected_tokens(PROMPT, 2) for tokens in driven.tokens.values())
    assert [driven.ends[f"twin {i}"].num_cached_tokens for i in range(8)] == [0] + 7 * [32]


def test_duplicates_of_exactly_k_blocks_share_all_but_the_last():
    driven = drive()
    for index in range(3):
        driven.add(f"twin {index}", numbers(16), max_tokens=1)
    driven.run()
    assert driven.executor.num_tokens_computed == 16 + 4 + 4
    assert all(tokens == expected_tokens(numbers(16), 1) for tokens in driven.tokens.values())


def test_a_waiter_counts_as_waiting_and_holds_no_blocks():
    driven = duplicates(2, budget=8)
    driven.step()
    assert driven.running() == {"twin 0"}
    stats = driven.engine.stats
    assert (stats.num_running, stats.num_waiting, stats.kv_blocks_used) == (1, 1, 9)


@SIZES
def test_a_waiter_takes_over_when_the_writer_is_aborted(sizes):
    driven = duplicates(3, **sizes)
    driven.step()
    driven.step()
    driven.abort("twin 0")
    driven.run()
    assert driven.reasons() == {"twin 0": "abort", "twin 1": "length", "twin 2": "length"}
    # The blocks that were written stay of use; the rest is computed once more, by one of the two.
    num_lost = 2 * sizes["budget"] % 4
    assert driven.executor.num_tokens_computed == num_lost + len(PROMPT) + 1 + 2


@SIZES
def test_a_waiter_takes_over_when_the_writer_is_preempted(sizes):
    driven = drive(num_blocks=10, **sizes)
    driven.add("twin 0", PROMPT, max_tokens=2, priority=1)
    driven.add("twin 1", PROMPT, max_tokens=2, priority=1)
    driven.step()
    driven.step()
    driven.add("urgent", numbers(17, 1), max_tokens=2, priority=-5)
    driven.step()
    assert driven.running() == {"urgent"}
    driven.run()
    assert driven.tokens == {
        "twin 0": expected_tokens(PROMPT, 2),
        "twin 1": expected_tokens(PROMPT, 2),
        "urgent": expected_tokens(numbers(17, 1), 2),
    }


@SIZES
def test_a_waiter_takes_over_when_the_writers_step_fails(sizes):
    failures = iter([None, *[RuntimeError("this step breaks")] * 2])
    driven = duplicates(2, **sizes, failure=lambda context: next(failures, None))
    driven.run()
    assert driven.reasons() == {"twin 0": "error", "twin 1": "length"}
    assert driven.tokens["twin 1"] == expected_tokens(PROMPT, 2)


@SIZES
@pytest.mark.parametrize("reason", ["abort", "timeout"])
def test_a_waiter_that_ends_is_not_woken(reason, sizes):
    driven = drive(**sizes)
    driven.add("twin 0", PROMPT, max_tokens=2)
    driven.clock.now += 1
    driven.add("twin 1", PROMPT, max_tokens=2, timeout_s=5.0)
    driven.step()
    driven.step()
    if reason == "abort":
        driven.abort("twin 1")
    else:
        driven.clock.now += 6
    driven.run()
    assert driven.reasons() == {"twin 0": "length", "twin 1": reason}
    assert driven.tokens["twin 1"] == []


def test_a_waiter_is_woken_once_not_block_by_block():
    driven = drive(budget=4, max_num_seqs=2)
    driven.add("less important", numbers(60, 1), max_tokens=2, priority=1)
    driven.step()
    driven.add("writer", PROMPT, max_tokens=2)
    driven.step()
    driven.add("twin", PROMPT, max_tokens=2)  # looked at in every step, for there is somebody who would give way to it
    duplicate = driven.scheduler.requests["twin"]
    statuses = []
    while "twin" not in driven.ends:
        driven.step()
        statuses.append(duplicate.status)
    assert [(status.value, len([*steps])) for status, steps in groupby(statuses)] == [
        ("waiting_for_prefix", 9),
        ("waiting", 1),
        ("running", 1),
        ("finished", 1),
    ]
    assert driven.tokens["twin"] == expected_tokens(PROMPT, 2)


def test_no_wait_for_a_partly_shared_prefix_once_written():
    driven = drive(budget=64)
    driven.add("a", PROMPT[:16] + numbers(10, 1), max_tokens=1)
    driven.add("b", PROMPT[:16] + numbers(10, 2), max_tokens=1)
    driven.run()
    assert driven.executor.num_tokens_computed == 26 + 10
    assert driven.tokens["b"] == expected_tokens(PROMPT[:16] + numbers(10, 2), 1)


def test_no_request_waits_for_a_duplicate_of_lower_priority():
    driven = drive(budget=8)
    driven.add("writer", PROMPT, max_tokens=2, priority=1)
    driven.step()
    driven.add("other", numbers(33, 1), max_tokens=2)
    driven.add("urgent", PROMPT, max_tokens=2, priority=-1)
    driven.add("its twin", PROMPT, max_tokens=2, priority=-1)
    driven.run()
    # The two urgent ones share what the first of them computes, and the writer's blocks are found where they are there.
    assert list(driven.ends) == ["urgent", "its twin", "other", "writer"]
    assert driven.ends["urgent"].num_cached_tokens == 8
    assert driven.ends["its twin"].num_cached_tokens == 32
    assert driven.tokens["urgent"] == driven.tokens["its twin"] == driven.tokens["writer"] == expected_tokens(PROMPT, 2)


def test_other_requests_pass_a_waiter():
    driven = duplicates(2, budget=16)
    driven.add("other", numbers(5, 1), max_tokens=1)
    driven.step()
    driven.step()
    driven.step()
    assert "other" in driven.ends
    assert "twin 1" not in driven.ends
