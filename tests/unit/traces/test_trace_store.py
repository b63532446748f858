import gc

import pytest

from rayinfer.outputs import TraceEvent
from rayinfer.traces.trace_store import MAX_SAME_NAME, TraceStore
from support.fakes.virtual_time import FakeClock
from support.kernels.memory_use import held_bytes


@pytest.fixture
def clock():
    return FakeClock()


def open_trace(traces, name, request_ids=None, kind="cmpl"):
    ids = request_ids or [f"{name}-inside"]
    traces.open(name=name, response_id=f"{kind}-{name}", model="m", request_ids=ids, received_s=7.0)


def events_of(traces, name):
    (kept,) = traces.find(name)
    return [(event.name, event.details) for event in kept.trace.in_order()]


def test_events_are_recorded_with_their_prompts_and_choices():
    traces = TraceStore()
    open_trace(traces, "a", ["x", "y"])
    traces.dispatched("y", [0, 1])
    traces.add_engine_events("y", 1, [TraceEvent("queued", 2e9, {}), TraceEvent("first_token", 2.1e9, {})])
    traces.finished("y", 0, "length", 5)
    assert events_of(traces, "a") == [
        ("received", {"num_prompts": 2}),
        ("dispatched", {"prompt": 1, "choice": 0}),
        ("dispatched", {"prompt": 1, "choice": 1}),
        ("finished", {"prompt": 1, "choice": 0, "reason": "length", "output_tokens": 5}),
        ("queued", {"prompt": 1, "choice": 1}),
        ("first_token", {"prompt": 1, "choice": 1}),
    ]
    assert traces.find("a")[0].trace.in_order()[0].time_s == 7.0


def test_a_request_is_found_by_its_name_and_by_its_answers_id_only():
    traces = TraceStore()
    open_trace(traces, "my-own")
    assert len(traces.find("my-own")) == len(traces.find("cmpl-my-own")) == 1
    for other in ("chatcmpl-my-own", "own", "my", "", "cmpl-", "cmpl-own", "my-own-inside"):
        assert traces.find(other) == []


def test_requests_of_one_name_are_all_found_the_latest_first_and_bounded():
    traces = TraceStore()
    for number in range(MAX_SAME_NAME + 2):
        open_trace(traces, "same", [f"inside-{number}"], kind="cmpl" if number % 2 else "chatcmpl")
    found = [list(kept.prompts) for kept in traces.find("same")]
    assert found == [[f"inside-{number}"] for number in range(MAX_SAME_NAME + 1, 1, -1)]
    assert len(traces.find("cmpl-same")) == MAX_SAME_NAME // 2


def test_a_name_like_a_response_id_hides_no_other_trace():
    traces = TraceStore()
    open_trace(traces, "x")
    open_trace(traces, "cmpl-x")
    assert [kept.name for kept in traces.find("cmpl-x")] == ["x", "cmpl-x"]


def test_a_trace_is_kept_for_a_while_after_its_latest_event(clock):
    traces = TraceStore(keep_s=10.0, clock=clock)
    open_trace(traces, "a")
    clock.now += 9
    traces.add_engine_events("a-inside", 0, [TraceEvent("queued", 1.0, {})])
    clock.now += 9
    assert traces.find("a")
    clock.now += 2
    assert traces.find("a") == []
    traces.add_engine_events("a-inside", 0, [TraceEvent("queued", 1.0, {})])
    traces.dispatched("a-inside", [0])
    traces.finished("a-inside", 0, "stop", 1)
    assert traces.find("a") == []


def test_an_answer_that_takes_longer_than_that_keeps_its_trace(clock):
    traces = TraceStore(keep_s=10.0, clock=clock)
    open_trace(traces, "long")
    traces.dispatched("long-inside", [0])
    for _ in range(5):
        clock.now += 11
        assert traces.find("long")
    traces.finished("long-inside", 0, "stop", 1)
    clock.now += 11
    assert traces.find("long") == []


def test_too_many_requests_drop_the_trace_with_the_oldest_event():
    traces = TraceStore(max_requests=2)
    open_trace(traces, "a")
    open_trace(traces, "b")
    traces.dispatched("a-inside", [0])
    open_trace(traces, "c")
    assert [bool(traces.find(name)) for name in "abc"] == [True, False, True]


def test_too_many_events_drop_the_oldest_trace_completely():
    traces, held = TraceStore(max_size=110), []
    for number in range(500):
        name = f"r{number}"
        open_trace(traces, name)
        traces.add_engine_events(f"{name}-inside", 0, [TraceEvent("prefill_chunk", 1.0, {})] * 9)
        held.append(held_bytes(traces))
    assert [bool(traces.find(f"r{number}")) for number in (489, 490, 499)] == [False, True, True]
    assert max(held) < 1.1 * held[10]


def test_many_prompts_count_like_events():
    """Requests that are refused at once have one event, however many prompts they bring."""
    traces = TraceStore(max_size=100)
    for number in range(10):
        open_trace(traces, f"r{number}", [f"{number}/{prompt}" for prompt in range(24)])
    assert [bool(traces.find(f"r{number}")) for number in (5, 6, 9)] == [False, True, True]


def test_stored_events_are_no_work_for_the_garbage_collector():
    """A full collection walks every object that it tracks, while all streams wait."""
    traces, before = TraceStore(), num_tracked_objects()
    for number in range(10):
        ids = [f"{number}/{prompt}" for prompt in range(100)]
        open_trace(traces, f"r{number}", ids)
        for request_id in ids:
            traces.dispatched(request_id, [0], engine="e", why="least load", waited_s=0.1)
            traces.add_engine_events(request_id, 0, [TraceEvent("first_token", time_s=number, details={})])
            traces.finished(request_id, 0, "length", 5)
    assert num_tracked_objects() - before < 20 * 10  # of 10 requests, with 1,000 prompts and 3,010 events
    assert len(traces.find("r9")[0].trace) == 301


def num_tracked_objects() -> int:
    gc.collect()
    return len(gc.get_objects())
