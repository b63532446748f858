"""The events of a traced request: all of them, in order, with their details, and delivered with its end."""

import time

import pytest

from rayinfer.protocols import Sleep, Wake
from support.fakes.fake_executor import drive, numbers

PROMPT = numbers(17)


def reported(driven, request_id="a"):
    """Names and details of a request's trace, after a look at its times."""
    times = [event.time_s for event in driven.ends[request_id].trace]
    assert times == sorted(times)
    assert all(abs(event_time - time.time()) < 60 for event_time in times)
    return [(event.name, event.details) for event in driven.ends[request_id].trace]


def test_a_trace_has_queueing_admission_chunks_first_token_and_end():
    driven = drive(budget=10)
    driven.add("a", PROMPT, max_tokens=3, trace=True, priority=2)
    driven.run()
    assert reported(driven) == [
        ("queued", {"prompt_tokens": 17, "priority": 2}),
        ("admitted", {"row": 0, "blocks": 5, "cached_tokens": 0}),
        ("prefill_chunk", {"start": 0, "end": 10}),
        ("prefill_chunk", {"start": 10, "end": 17}),
        ("first_token", {}),
        ("finished", {"reason": "length", "output_tokens": 3}),
    ]


def test_a_trace_has_cache_hits_when_one_token_is_left():
    driven = drive()
    driven.add("before", PROMPT)
    driven.run()
    driven.add("a", PROMPT, max_tokens=1, trace=True)
    driven.run()
    assert reported(driven)[1:3] == [
        ("admitted", {"row": 0, "blocks": 5, "cached_tokens": 16}),
        ("prefill_chunk", {"start": 16, "end": 17}),
    ]


def test_a_trace_has_preemption_and_resumption():
    driven = drive(max_num_seqs=1)
    driven.add("a", PROMPT, max_tokens=4, trace=True, priority=1)
    driven.step()
    driven.step()
    driven.add("urgent", numbers(5, 1), max_tokens=1)
    driven.run()
    assert reported(driven)[2:] == [
        ("prefill_chunk", {"start": 0, "end": 17}),
        ("first_token", {}),
        ("preempted", {"computed_tokens": 18}),
        ("resumed", {"row": 0, "blocks": 5, "cached_tokens": 16}),
        ("prefill_chunk", {"start": 16, "end": 19}),
        ("finished", {"reason": "length", "output_tokens": 4}),
    ]


def test_a_trace_has_recomputed_outputs():
    driven = drive(max_num_seqs=1)
    driven.add("a", PROMPT, max_tokens=8, trace=True, priority=1)
    for _ in range(5):
        driven.step()
    driven.add("urgent", numbers(5, 1), max_tokens=1)
    driven.run()
    assert reported(driven)[4:-1] == [
        ("preempted", {"computed_tokens": 21}),
        ("resumed", {"row": 0, "blocks": 6, "cached_tokens": 20}),
        ("prefill_chunk", {"start": 20, "end": 22}),
    ]


def test_the_first_token_of_a_request_that_comes_with_part_of_its_answer_is_its_first_here():
    driven = drive()
    driven.add("a", PROMPT, outputs=[5, 6], max_tokens=4, trace=True)
    driven.run()
    assert [name for name, _ in reported(driven)] == ["queued", "admitted", "prefill_chunk", "first_token", "finished"]


def test_a_sleep_that_drops_everything_swaps_nothing():
    driven = drive(num_offload_blocks=32)
    driven.add("a", PROMPT, max_tokens=4, trace=True)
    driven.step()
    driven.engine.control(Sleep(2))
    driven.engine.control(Wake())
    driven.run()
    assert driven.executor.copies == []
    assert [name for name, _ in reported(driven)][4:7] == ["preempted", "resumed", "prefill_chunk"]


@pytest.mark.parametrize("reason", ["abort", "timeout", "error"])
def test_a_trace_comes_with_every_kind_of_end(reason):
    driven = drive(failure=lambda context: RuntimeError("no") if reason == "error" else None)
    driven.add("a", PROMPT, trace=True, timeout_s=-1.0 if reason == "timeout" else None)
    if reason == "abort":
        driven.abort("a")
    driven.run()
    names = ["queued", "admitted", "finished"] if reason == "error" else ["queued", "finished"]
    assert [name for name, _ in reported(driven)] == names
    assert reported(driven)[-1] == ("finished", {"reason": reason, "output_tokens": 0})


def test_a_request_that_is_not_traced_has_no_trace_beside_one_that_is():
    driven = drive()
    driven.add("a", PROMPT, trace=True)
    driven.add("b", PROMPT)
    driven.run()
    assert driven.ends["b"].trace is None
    assert reported(driven)


def test_a_traced_request_that_decodes_is_as_plain_as_any_other_to_the_steps():
    driven = drive(budget=10)
    driven.add("traced", PROMPT, trace=True, max_tokens=9)
    driven.add("told", numbers(5, 1), logprobs=0, max_tokens=9)
    rows_with_details = driven.scheduler.batch.table.rows_with_details
    driven.step()
    assert rows_with_details
    driven.step()
    driven.step()
    assert {driven.scheduler.request_id_at(row) for row in rows_with_details} == {"told"}
    driven.run()
