"""Steps that continue from future tokens: what is planned, dropped and reported when."""

import pytest

from rayinfer.protocols import Pause, Resume, Sleep, Wake
from support.fakes.fake_executor import EOS, INVALID, drive, expected_tokens, mixed_answer, numbers


def ahead(**settings):
    return drive(supports_async_scheduling=True, **settings)


def ending(length):
    """Answers with the end token as soon as a request has so many tokens."""
    return lambda context: EOS if len(context) == length else mixed_answer(context)


def test_the_next_step_is_in_flight_before_tokens_are_returned():
    driven = ahead()
    for number in range(3):
        driven.add(f"r{number}", numbers(5, start=number), max_tokens=6)
    told = driven.step()
    assert [len(delta.token_ids) for delta in told] == [1, 1, 1]
    assert driven.executor.names == [{"r0", "r1", "r2"}] * 2
    assert driven.executor.plans[0].uses_last_sampled.tolist() == [False] * 3
    assert driven.executor.plans[1].uses_last_sampled.tolist() == [True] * 3
    driven.run()
    assert driven.tokens == {f"r{number}": expected_tokens(numbers(5, start=number), 6) for number in range(3)}


def test_a_request_that_ends_by_its_length_is_in_no_step_too_many():
    driven = ahead()
    driven.add("a", numbers(5), max_tokens=4)
    driven.add("b", numbers(6, start=40), max_tokens=None)
    driven.step()
    for _ in range(3):
        driven.step()
    assert driven.reasons() == {"a": "length"}
    assert sum("a" in names for names in driven.executor.names) == 4
    driven.run()
    longest = driven.engine.description.max_model_len
    assert sum("b" in names for names in driven.executor.names) == longest - 6
    assert driven.tokens["b"] == expected_tokens(numbers(6, start=40), longest - 6)


def test_a_request_that_ends_by_a_token_is_computed_once_more_and_that_token_dropped():
    driven = ahead(answer=ending(8))
    driven.add("a", numbers(5), max_tokens=30)
    driven.run()
    assert driven.tokens["a"] == [*expected_tokens(numbers(5), 3), EOS]
    assert driven.reasons() == {"a": "stop"}
    assert len(driven.executor.plans) == 5
    assert driven.engine.stats.generation_tokens_total == 4


def test_row_and_blocks_are_reused_while_their_last_step_is_in_flight():
    driven = ahead(answer=ending(8), max_num_seqs=1, num_blocks=3, caching=False)
    driven.add("a", numbers(5), max_tokens=7)
    driven.add("b", numbers(6, start=40), max_tokens=5)
    driven.run()
    assert driven.tokens["a"] == [*expected_tokens(numbers(5), 3), EOS]
    assert driven.tokens["b"] == [*expected_tokens(numbers(6, start=40), 2), EOS]


def test_invalid_logits_end_only_their_request_with_a_step_in_flight():
    driven = ahead(answer=lambda context: INVALID if context[0] == 4 and len(context) == 7 else mixed_answer(context))
    driven.add("sick", [4, *numbers(4)], max_tokens=9)
    driven.add("well", numbers(5), max_tokens=9)
    driven.run()
    assert driven.reasons() == {"sick": "error", "well": "length"}
    assert len(driven.tokens["sick"]) == 2
    assert driven.tokens["well"] == expected_tokens(numbers(5), 9)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("num_offload_blocks", [0, 16])
def test_a_preempted_request_has_no_future_token(caching, num_offload_blocks):
    driven = ahead(num_blocks=9, caching=caching, num_offload_blocks=num_offload_blocks)
    for number in range(4):
        driven.add(f"r{number}", numbers(6, start=number), max_tokens=14, trace=True)
    driven.run()
    assert driven.engine.stats.num_preemptions_total > 2
    assert driven.engine.stats.generation_tokens_total == 4 * 14
    assert driven.tokens == {f"r{number}": expected_tokens(numbers(6, start=number), 14) for number in range(4)}


def test_no_preemption_while_an_in_flight_step_may_free_blocks():
    def answer(context):
        return EOS if len(context) == 8 and context[0] == 4 else mixed_answer(context)

    driven = ahead(answer=answer, num_blocks=5, caching=False)
    driven.add("ends", [4, *numbers(4)], max_tokens=9)
    driven.add("stays", numbers(5), max_tokens=9)
    driven.run()
    assert driven.reasons() == {"ends": "stop", "stays": "length"}
    assert driven.engine.stats.num_preemptions_total == 0


@pytest.mark.parametrize(("max_tokens", "is_short"), [(4, False), (5, True)])
def test_the_last_token_of_a_request_needs_no_block(max_tokens, is_short):
    driven = ahead()
    driven.add("a", numbers(5), max_tokens=max_tokens)
    for _ in range(3):
        driven.step()  # the ninth token, beyond two blocks, is the next to be told
    assert bool(len(driven.scheduler.batch.rows_short_of_a_block())) == is_short


def test_an_urgent_arrival_takes_the_row_of_an_in_flight_token():
    driven = ahead(max_num_seqs=1)
    driven.add("low", numbers(5), max_tokens=9, priority=5)
    driven.step()
    driven.add("high", numbers(6, start=40), max_tokens=3)
    driven.run()
    assert driven.engine.stats.num_preemptions_total == 1
    assert driven.tokens["low"] == expected_tokens(numbers(5), 9)
    assert driven.tokens["high"] == expected_tokens(numbers(6, start=40), 3)
    assert driven.engine.stats.generation_tokens_total == 12


@pytest.mark.parametrize("end", ["abort", "timeout"])
def test_an_aborted_request_has_its_returned_tokens(end):
    driven = ahead(max_num_seqs=2)
    driven.add("a", numbers(5), max_tokens=9, timeout_s=5.0)
    driven.add("b", numbers(6, start=40), max_tokens=9)
    driven.step()
    driven.step()
    if end == "abort":
        driven.abort("a")
    else:
        driven.clock.now += 6.0
        driven.step()
    driven.add("c", numbers(7, start=70), max_tokens=4)
    driven.run()
    assert driven.reasons()["a"] == end
    assert driven.tokens["a"] == expected_tokens(numbers(5), 2)
    assert driven.tokens["b"] == expected_tokens(numbers(6, start=40), 9)
    assert driven.tokens["c"] == expected_tokens(numbers(7, start=70), 4)


def test_a_prompt_in_chunks_goes_on_from_known_tokens_and_is_scored_once():
    driven = ahead(budget=4)
    driven.add("a", numbers(15), max_tokens=3, prompt_logprobs=1, logprobs=0)
    driven.add("scored", numbers(11, start=30), max_tokens=0, prompt_logprobs=0)
    driven.run()
    assert driven.tokens["a"] == expected_tokens(numbers(15), 3)
    assert [len(driven.prompt_logprobs[name]) for name in ("a", "scored")] == [15, 11]
    assert len(driven.logprobs["a"]) == 3
    assert driven.reasons() == {"a": "length", "scored": "length"}


def test_a_block_is_hit_only_once_its_tokens_are_known():
    driven = ahead(num_blocks=40)
    driven.add("a", numbers(8), max_tokens=12)
    for _ in range(3):
        driven.step()
        known = numbers(8) + driven.tokens["a"]
        stored = driven.engine.take_block_events()[0]
        assert len(stored) in (0, 2)  # the prompt's
    driven.run()
    whole = [*numbers(8), *driven.tokens["a"]]
    assert whole[: len(known)] == known
    driven.add("b", whole[:17], max_tokens=2)
    driven.run()
    assert driven.ends["b"].num_cached_tokens == 16
    assert driven.tokens["b"] == expected_tokens(whole[:17], 2)


def test_a_duplicate_waits_until_the_prefix_is_cached():
    driven = ahead()
    driven.add("a", numbers(13), max_tokens=3)
    driven.add("b", numbers(13), max_tokens=3)
    driven.run()
    assert driven.ends["b"].num_cached_tokens == 12
    assert driven.tokens["a"] == driven.tokens["b"] == expected_tokens(numbers(13), 3)


def test_a_failing_step_is_computed_again_in_halves_once_the_one_before_is_known():
    def failure(context):
        return RuntimeError("bad") if context[0] == 4 and len(context) == 8 else None

    driven = ahead(failure=failure)
    driven.add("bad", [4, *numbers(4)], max_tokens=9)
    for number in range(4):
        driven.add(f"r{number}", numbers(5, start=number + 10), max_tokens=9)
    driven.run()
    assert driven.reasons().pop("bad") == "error"
    assert len(driven.tokens["bad"]) == 3
    for number in range(4):
        assert driven.tokens[f"r{number}"] == expected_tokens(numbers(5, start=number + 10), 9)
    assert driven.engine.stats.generation_tokens_total == 4 * 9 + 3
    again = [plan for plan in driven.executor.plans if plan.uses_last_sampled is None]
    assert len(again) > 2
    for plan in again:
        whole = [expected_tokens(numbers(5, start=number + 10), 9) for number in range(4)]
        assert set(plan.token_ids.tolist()) <= {tokens[2] for tokens in [*whole, driven.tokens["bad"]]}


def test_a_failure_of_an_ended_request_is_not_reported():
    def failure(context):
        return RuntimeError("bad") if EOS in context else None

    driven = ahead(answer=ending(7), failure=failure)
    driven.add("a", numbers(5), max_tokens=9)
    driven.add("b", numbers(4, start=40), max_tokens=2)
    driven.run()
    assert driven.reasons() == {"a": "stop", "b": "length"}
    assert driven.tokens["a"] == [*expected_tokens(numbers(5), 2), EOS]


def test_the_requests_of_an_interrupted_step_enter_again_with_known_tokens():
    interruptions = iter([None, None, None, None, KeyboardInterrupt()])
    driven = ahead(failure=lambda context: next(interruptions, None))
    driven.add("a", numbers(5), max_tokens=6)
    driven.add("b", numbers(6, start=40), max_tokens=6)
    driven.step()
    with pytest.raises(KeyboardInterrupt):
        driven.step()
    driven.run()
    assert driven.tokens["a"] == expected_tokens(numbers(5), 6)
    assert driven.tokens["b"] == expected_tokens(numbers(6, start=40), 6)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_the_in_flight_step_is_reported_before_the_engine_sleeps(level):
    driven = ahead()
    for number in range(3):
        driven.add(f"r{number}", numbers(5, start=number), max_tokens=8)
    driven.step()
    num_plans = len(driven.executor.plans)
    driven.engine.control(Sleep(level))
    assert len(driven.step()) == 3
    assert len(driven.executor.plans) == num_plans
    driven.engine.control(Wake())
    driven.run()
    assert driven.tokens == {f"r{number}": expected_tokens(numbers(5, start=number), 8) for number in range(3)}


def test_an_abort_during_sleep_reports_no_gap():
    driven = ahead()
    driven.add("a", numbers(5), max_tokens=8)
    driven.step()
    driven.engine.control(Sleep(1))
    driven.abort("a")  # `Driven` checks where its end stands
    assert driven.reasons() == {"a": "abort"}
    assert not driven.engine.has_unfinished_requests


def test_a_paused_engine_finishes_its_step_and_begins_none():
    driven = ahead()
    driven.add("a", numbers(5), max_tokens=8)
    driven.step()
    driven.engine.control(Pause())
    num_plans = len(driven.executor.plans)
    assert [len(driven.step()), len(driven.step())] == [1, 0]
    assert len(driven.executor.plans) == num_plans
    driven.engine.control(Resume())
    driven.run()
    assert driven.tokens["a"] == expected_tokens(numbers(5), 8)


def test_the_step_that_is_waited_for_is_announced_after_the_one_that_is_begun():
    driven = ahead()
    announced = []
    driven.engine.on_plan = announced.append
    driven.add("a", numbers(5), max_tokens=8)
    driven.step()
    driven.step()
    assert announced == [5, 1, 5, 1, 1]
