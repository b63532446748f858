"""Step scheduling: token budget, order of admission, chunked prefill, prefix hits, and finish reasons."""

import numpy as np
import pytest

from support.fakes.fake_executor import EOS, INVALID, drive, expected_tokens, mixed_answer, numbers


def counts_of_last_plan(driven):
    plan = driven.executor.plans[-1]
    counts = np.diff(plan.cu_seqlens_q).tolist()
    return {driven.scheduler.request_id_at(int(row)): count for row, count in zip(plan.rows, counts, strict=True)}


# Budget and chunks


def test_a_long_prompt_is_computed_in_chunks_of_the_budget():
    driven = drive(budget=10)
    driven.add("a", numbers(25), max_tokens=2)
    driven.run()
    assert [plan.num_tokens for plan in driven.executor.plans] == [10, 10, 5, 1]
    assert [plan.samples.tolist() for plan in driven.executor.plans] == [[False], [False], [True], [True]]
    assert driven.tokens["a"] == expected_tokens(numbers(25), 2)


def test_decoding_goes_first_and_prompt_chunks_share_what_is_left():
    driven = drive(budget=10)
    driven.add("old", numbers(8), max_tokens=9)
    driven.step()
    driven.add("new", numbers(20, start=1))
    driven.step()
    assert counts_of_last_plan(driven) == {"old": 1, "new": 9}
    driven.step()
    assert counts_of_last_plan(driven) == {"old": 1, "new": 9}
    driven.step()
    assert counts_of_last_plan(driven) == {"old": 1, "new": 2}


def test_several_prompts_fill_one_step_and_the_last_one_starts_with_what_fits():
    driven = drive(budget=20)
    for start in range(3):
        driven.add(f"r{start}", numbers(9, start))
    driven.step()
    assert counts_of_last_plan(driven) == {"r0": 9, "r1": 9, "r2": 2}
    driven.run()
    assert driven.tokens == {f"r{start}": expected_tokens(numbers(9, start), 4) for start in range(3)}


def test_no_more_requests_run_than_a_step_has_tokens():
    driven = drive(budget=3, max_num_seqs=8)
    for start in range(6):
        driven.add(f"r{start}", numbers(2, start), max_tokens=5)
    driven.run()
    assert driven.tokens == {f"r{start}": expected_tokens(numbers(2, start), 5) for start in range(6)}
    assert max(plan.num_requests for plan in driven.executor.plans) == 3


def test_no_more_requests_run_than_there_are_rows():
    driven = drive(max_num_seqs=2)
    for start in range(5):
        driven.add(f"r{start}", numbers(4, start))
    driven.step()
    assert driven.engine.stats.num_running == 2
    assert driven.engine.stats.num_waiting == 3
    driven.run()
    assert driven.reasons() == {f"r{start}": "length" for start in range(5)}


# Order of admission


def test_equal_priorities_run_in_order_of_arrival():
    driven = drive(max_num_seqs=1)
    for request_id in "cab":
        driven.add(request_id, numbers(4, ord(request_id)), max_tokens=1)
        driven.clock.now += 0.001
    starts = []
    while driven.engine.has_unfinished_requests:
        starts += [delta.request_id for delta in driven.step()]
    assert starts == ["c", "a", "b"]


def test_lower_priorities_run_first():
    driven = drive(max_num_seqs=1)
    for request_id, priority in {"low": 5, "normal": 0, "high": -3, "normal too": 0}.items():
        driven.add(request_id, numbers(4, priority + 10), max_tokens=1, priority=priority)
    starts = []
    while driven.engine.has_unfinished_requests:
        starts += [delta.request_id for delta in driven.step()]
    assert starts == ["high", "normal", "normal too", "low"]


def test_a_request_that_has_waited_long_enough_goes_before_a_younger_one_of_higher_priority():
    driven = drive(max_num_seqs=1)
    driven.add("old", numbers(4), max_tokens=1, priority=1)
    driven.clock.now += 10.5
    driven.add("young", numbers(4, 1), max_tokens=1, priority=0)
    assert [driven.step()[0].request_id for _ in range(2)] == ["old", "young"]


# Prefix hits


@pytest.mark.parametrize("length", [4, 8, 16, 5, 7, 1, 17])
def test_a_prompt_that_is_cached_computes_its_last_block_only(length):
    driven = drive()
    driven.add("first", numbers(length))
    driven.run()
    before = driven.executor.num_tokens_computed
    driven.add("second", numbers(length), max_tokens=1)
    driven.run()
    hits = (length - 1) // 4 * 4
    assert driven.executor.num_tokens_computed - before == length - hits > 0
    assert driven.ends["second"].num_cached_tokens == hits
    assert driven.tokens["second"] == driven.tokens["first"][:1] == expected_tokens(numbers(length), 1)


def test_an_answer_is_cached_for_the_next_turn():
    driven = drive()
    driven.add("turn 1", numbers(6), max_tokens=10)
    driven.run()
    prompt = numbers(6) + driven.tokens["turn 1"] + numbers(3, 50)
    driven.add("turn 2", prompt)
    driven.run()
    assert driven.ends["turn 2"].num_cached_tokens == 12  # 6 + 9 written tokens are three full blocks
    assert driven.tokens["turn 2"] == expected_tokens(prompt, 4)


@pytest.mark.parametrize("other", [{"tenant": "b"}, {"cache_salt": "s"}, {"adapter": "lora"}])
def test_tenants_salts_and_adapters_share_nothing(other):
    driven = drive()
    driven.add("mine", numbers(17), tenant="a")
    driven.add("yours", numbers(17), **{"tenant": "a", **other})
    driven.run()
    driven.add("yours again", numbers(17), **{"tenant": "a", **other})
    driven.run()
    assert driven.ends["yours"].num_cached_tokens == 0
    assert driven.ends["yours again"].num_cached_tokens == 16


def test_without_prefix_caching_nothing_is_hit_and_no_request_waits():
    driven = drive(caching=False)
    for request_id in "ab":
        driven.add(request_id, numbers(17), max_tokens=1)
    driven.step()
    driven.run()
    driven.add("c", numbers(17), max_tokens=1)
    driven.run()
    assert driven.executor.num_tokens_computed == 3 * 17
    assert [driven.ends[request_id].num_cached_tokens for request_id in "abc"] == [0, 0, 0]
    assert driven.engine.take_block_events() == ([], [])


def test_a_block_is_hit_only_once_it_is_written():
    driven = drive(budget=8)
    driven.add("long", numbers(40), max_tokens=1)
    driven.step()
    driven.add("same", numbers(40), max_tokens=1)  # two blocks are there, the rest is under way
    driven.run()  # the executor checks what is read
    assert driven.tokens["same"] == expected_tokens(numbers(40), 1)
    assert driven.executor.num_tokens_computed == 40 + 4


def test_cached_tokens_are_at_most_those_of_the_prompt():
    driven = drive()
    driven.add("first", numbers(17), max_tokens=12)
    driven.run()
    driven.add("goes on", numbers(17), outputs=driven.tokens["first"][:10], max_tokens=12)
    driven.run()
    assert driven.tokens["goes on"] == driven.tokens["first"]
    assert driven.ends["goes on"].num_cached_tokens == 17  # of 24 whose blocks were there


def test_matched_blocks_are_not_evicted_by_the_admission_that_matched_them():
    driven = drive(num_blocks=8)
    driven.add("first", numbers(16), max_tokens=1)
    driven.run()
    driven.add("other", numbers(12, 1), max_tokens=1)  # the four blocks of "first" are now the oldest
    driven.run()
    driven.add("second", numbers(16) + numbers(15, 2), max_tokens=1)
    driven.run()
    assert driven.ends["second"].num_cached_tokens == 16
    assert driven.tokens["second"] == expected_tokens(numbers(16) + numbers(15, 2), 1)


# Ends


def test_the_end_token_ends_a_request_and_says_stop():
    driven = drive(answer=lambda context: EOS if len(context) == 7 else mixed_answer(context))
    driven.add("a", numbers(5), max_tokens=9)
    driven.run()
    assert driven.tokens["a"][-1] == EOS
    assert len(driven.tokens["a"]) == 3
    assert (driven.ends["a"].finish_reason, driven.ends["a"].stop_reason) == ("stop", None)


def test_every_one_of_several_end_tokens_ends_a_request():
    driven = drive(eos_token_ids=(0, 1), answer=lambda context: len(context) - 5)
    driven.add("a", numbers(5), max_tokens=9)
    driven.add("b", numbers(6), max_tokens=9)
    driven.run()
    assert driven.tokens == {"a": [0], "b": [1]}


def test_an_ignored_end_token_is_a_token_like_others():
    driven = drive(answer=lambda context: EOS)
    driven.add("a", numbers(5), max_tokens=3, ignore_eos=True)
    driven.run()
    assert driven.tokens["a"] == [EOS] * 3
    assert driven.reasons() == {"a": "length"}


def test_a_stop_id_is_named_and_holds_for_its_own_request_only():
    driven = drive(answer=lambda context: 7)
    driven.add("a", numbers(5), max_tokens=3, stop_token_ids=[90, 7], ignore_eos=True)
    driven.add("b", numbers(5, 1), max_tokens=3)
    driven.run()
    assert driven.tokens == {"a": [7], "b": [7, 7, 7]}
    assert (driven.ends["a"].finish_reason, driven.ends["a"].stop_reason) == ("stop", 7)


def test_an_end_token_as_the_last_allowed_token_is_a_stop():
    driven = drive(answer=lambda context: EOS if len(context) == 7 else 9)
    driven.add("a", numbers(5), max_tokens=3)
    driven.run()
    assert driven.reasons() == {"a": "stop"}


@pytest.mark.parametrize("max_tokens", [None, 500])
def test_the_context_ends_an_answer_with_length(max_tokens):
    driven = drive(num_blocks=8, max_model_len=21)
    driven.add("a", numbers(5), max_tokens=max_tokens)
    driven.run()
    assert driven.tokens["a"] == expected_tokens(numbers(5), 16)
    assert driven.reasons() == {"a": "length"}


def test_invalid_logits_end_one_request_and_leave_the_others(caplog):
    driven = drive(answer=lambda context: INVALID if context[0] == 3 and len(context) == 8 else mixed_answer(context))
    driven.add("bad", numbers(6, 0), max_tokens=5)
    driven.add("good", numbers(6, 1), max_tokens=5)
    driven.run()
    assert driven.tokens == {"bad": driven.tokens["bad"][:2], "good": expected_tokens(numbers(6, 1), 5)}
    assert driven.reasons() == {"bad": "error", "good": "length"}
    assert driven.engine.stats.generation_tokens_total == 7
    (told,) = caplog.messages
    assert told.startswith("request bad: ")


# Counters


def test_counters_count_events():
    driven = drive(answer=lambda context: EOS if len(context) == 20 else 9)
    driven.add("a", numbers(17), max_tokens=2)
    driven.run()
    driven.add("b", numbers(17), max_tokens=9)
    driven.step()
    during = driven.engine.stats
    assert (during.num_running, during.num_waiting, during.kv_blocks_used) == (1, 0, 5)
    assert during.kv_cache_usage == 5 / 32
    driven.run()
    driven.add("c", numbers(3))
    driven.abort("c")
    stats = driven.engine.stats
    assert stats.prompt_tokens_total == 34
    assert stats.cached_prompt_tokens_total == 16
    assert stats.generation_tokens_total == 2 + 4
    assert stats.num_steps_total == len(driven.executor.plans) == 6
    assert stats.requests_finished_total == {"length": 1, "stop": 1, "abort": 1}
    assert stats.num_preemptions_total == 0
    assert stats.kv_blocks_total == 32


def test_block_events_replayed_give_what_is_cached():
    driven = drive(num_blocks=8)
    cached = set()
    for start in range(6):
        driven.add(f"r{start}", numbers(18, start), max_tokens=3)
        driven.run()
        stored, removed = driven.engine.take_block_events()
        assert not cached & set(stored)
        assert cached >= set(removed)
        cached = (cached | set(stored)) - set(removed)
    assert 0 < len(cached) <= 8


def test_blocks_of_invalid_logits_are_not_hit_by_a_duplicate():
    driven = drive(num_blocks=16, block_size=8, max_num_seqs=4, budget=64, answer=lambda context: INVALID)
    prompt = list(range(3, 3 + 20))
    for name in ("first", "second"):
        driven.add(name, prompt)
        driven.run()
    assert driven.engine.stats.cached_prompt_tokens_total == 0
    assert driven.engine.stats.requests_finished_total == {"error": 2}
