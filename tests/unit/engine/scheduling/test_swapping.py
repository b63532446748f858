"""Return of preempted requests from the swap pool: what is computed, copied and freed."""

import pytest

from rayinfer.engine.plan.executor_commands import SleepLevel
from rayinfer.protocols import Sleep, Wake
from support.fakes.fake_executor import drive, expected_tokens, numbers


def crowded(num_offload_blocks, *, caching=True, num_requests=4, **settings):
    """Requests that together outgrow a pool of twelve blocks while they decode."""
    driven = drive(num_blocks=12, caching=caching, num_offload_blocks=num_offload_blocks, **settings)
    for start in range(num_requests):
        driven.add(f"r{start}", numbers(9, start), max_tokens=16)
        driven.clock.now += 0.01
    return driven


def check_tokens(driven, num_requests=4):
    assert driven.tokens == {f"r{i}": expected_tokens(numbers(9, i), 16) for i in range(num_requests)}


@pytest.mark.parametrize("caching", [True, False])
def test_swapped_requests_get_the_same_tokens_and_compute_less(caching):
    without, with_swapping = crowded(0, caching=caching), crowded(32, caching=caching)
    for driven in (without, with_swapping):
        driven.run()  # checks that the blocks of both pools come back
        check_tokens(driven)
        assert driven.engine.stats.num_preemptions_total > 0
    assert with_swapping.executor.copies
    assert with_swapping.executor.num_tokens_computed < without.executor.num_tokens_computed
    assert with_swapping.executor.num_tokens_computed == 4 * (9 + 16 - 1)  # each token once


def test_every_block_that_goes_out_is_whole_and_comes_back_once():
    driven = crowded(32, caching=False)
    driven.run()
    out = [copy for copy in driven.executor.copies if copy.direction == "out"]
    back = [copy for copy in driven.executor.copies if copy.direction == "in"]
    assert [copy.target_blocks for copy in out] == [copy.source_blocks for copy in back]
    assert driven.engine.stats.num_preemptions_total == len(out)


def test_a_second_pool_that_is_full_falls_back_to_computing_again():
    roomy, tight = crowded(32, caching=False, num_requests=6), crowded(3, caching=False, num_requests=6)
    for driven in (roomy, tight):
        driven.run()
        check_tokens(driven, 6)
    assert roomy.executor.num_tokens_computed < tight.executor.num_tokens_computed


def test_blocks_that_can_still_be_hit_are_not_copied_back():
    driven = drive(num_blocks=16, num_offload_blocks=16, max_num_seqs=1)
    driven.add("low", numbers(13), max_tokens=8, priority=5)
    driven.step()
    driven.add("high", numbers(5, 50), max_tokens=1)
    driven.run()
    assert driven.tokens == {"low": expected_tokens(numbers(13), 8), "high": expected_tokens(numbers(5, 50), 1)}
    # Three full blocks are hit; the fourth, which holds one token, was nobody's to hit.
    assert [(copy.direction, len(copy.source_blocks)) for copy in driven.executor.copies] == [("out", 4), ("in", 1)]


def test_a_swapped_request_waits_for_no_duplicate():
    driven = drive(num_blocks=24, num_offload_blocks=16, max_num_seqs=2, budget=16)
    driven.add("low", numbers(30), max_tokens=9, priority=5)
    driven.step()
    driven.step()
    driven.add("high", numbers(90, 50), max_tokens=1)  # takes all blocks, cached ones too
    driven.step()
    assert driven.engine.stats.kv_offload_blocks_used == 8
    driven.add("its twin", numbers(30), max_tokens=1, priority=4)
    while "low" not in driven.running():
        driven.step()
    assert driven.running() == {"low", "its twin"}  # whose prompt that step has computed to its end
    driven.run()
    assert driven.tokens["low"] == expected_tokens(numbers(30), 9)


def test_a_prompt_that_is_interrupted_goes_on_where_it_was():
    driven = drive(num_blocks=16, num_offload_blocks=16, max_num_seqs=1, budget=8, caching=False)
    driven.add("low", numbers(30), max_tokens=3, priority=5)
    driven.step()
    driven.step()
    driven.add("high", numbers(5, 50), max_tokens=1)
    driven.run()
    assert driven.tokens["low"] == expected_tokens(numbers(30), 3)
    assert driven.executor.num_tokens_computed == 30 + 2 + 5


@pytest.mark.parametrize("end", ["abort", "timeout"])
def test_a_request_that_ends_while_it_is_swapped_frees_its_blocks(end):
    driven = drive(num_blocks=16, num_offload_blocks=16, max_num_seqs=1)
    driven.add("low", numbers(13), max_tokens=8, priority=5, timeout_s=10.0)
    driven.step()
    driven.add("high", numbers(5, 50), max_tokens=6)
    driven.step()
    assert driven.engine.stats.kv_offload_blocks_used == 4
    if end == "abort":
        driven.abort("low")
    else:
        driven.clock.now += 11
        driven.step()
    assert driven.engine.stats.kv_offload_blocks_used == 0
    driven.run()
    assert driven.reasons() == {"low": end, "high": "length"}


def test_requests_of_one_prefix_share_its_blocks_in_the_second_pool_too():
    driven = drive(num_blocks=24, num_offload_blocks=24, budget=64)
    driven.add("first", numbers(33), max_tokens=20, priority=5)
    driven.step()
    driven.add("second", [*numbers(32), 90, 91], max_tokens=20, priority=5)
    driven.step()
    assert driven.engine.stats.kv_blocks_used == 10
    driven.add("high", numbers(80, 50), max_tokens=1)
    driven.step()
    assert driven.engine.stats.num_running == 1
    assert driven.engine.stats.kv_offload_blocks_used == 10  # eight for the prefix, one for each of the ends
    driven.run()
    assert driven.tokens["first"] == expected_tokens(numbers(33), 20)
    assert driven.tokens["second"] == expected_tokens([*numbers(32), 90, 91], 20)


def test_an_interrupted_copy_is_made_again_and_none_twice():
    driven = crowded(32, caching=False)
    interruptions = iter([KeyboardInterrupt(), None, KeyboardInterrupt()])
    copy_blocks = driven.executor.copy_blocks

    def interrupted(copy):
        copy_blocks(copy)
        if (error := next(interruptions, None)) is not None:
            raise error

    driven.executor.copy_blocks = interrupted
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            driven.run()
    driven.run()
    check_tokens(driven)
    assert driven.executor.num_tokens_computed <= 4 * (9 + 16 - 1)


def test_stats_have_the_use_of_the_swap_pool():
    driven = drive(num_offload_blocks=7)
    stats = driven.engine.stats
    assert (stats.kv_offload_blocks_used, stats.kv_offload_blocks_total) == (0, 7)
    assert drive().engine.stats.kv_offload_blocks_total == 0


def test_a_trace_has_swapped_blocks():
    driven = drive(num_blocks=16, num_offload_blocks=16, max_num_seqs=1)
    driven.add("low", numbers(13), max_tokens=3, priority=5, trace=True)
    driven.step()
    driven.add("high", numbers(5, 50), max_tokens=1)
    driven.run()
    events = {event.name: event.details for event in driven.ends["low"].trace}
    assert events["swapped_out"] == {"tokens": 13, "copied_blocks": 4}
    assert events["swapped_in"] == {"tokens": 13, "copied_blocks": 1}


@pytest.mark.parametrize("level", list(SleepLevel))
def test_swapped_requests_outlast_a_sleep(level):
    driven = crowded(32)
    while not driven.engine.stats.kv_offload_blocks_used:
        driven.step()
    driven.engine.control(Sleep(level))
    assert (driven.engine.stats.kv_offload_blocks_used == 0) == (level is SleepLevel.RECOMPUTE)
    driven.engine.control(Wake())
    driven.run()
    check_tokens(driven)
