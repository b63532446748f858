from rayinfer.outputs import TraceEvent
from rayinfer.traces.request_trace import MAX_EVENTS, RequestTrace


def named(trace: RequestTrace) -> list[tuple]:
    return [(event.name, event.details) for event in trace.in_order()]


def test_events_of_all_choices_come_in_the_order_of_their_times():
    trace = RequestTrace()
    trace.add_engine_events([TraceEvent("queued", 3.0, {}), TraceEvent("admitted", 5.0, {"cached": 16})], choice=1)
    trace.add_engine_events([TraceEvent("queued", 4.0, {})], choice=0)
    trace.record("received", time_s=1.0, num_prompts=1)
    assert named(trace) == [
        ("received", {"num_prompts": 1}),
        ("queued", {"choice": 1}),
        ("queued", {"choice": 0}),
        ("admitted", {"choice": 1, "cached": 16}),
    ]


def test_a_choice_ends_as_its_client_saw_it_and_not_as_the_engine_did():
    trace = RequestTrace()
    trace.record_end("stop", output_tokens=7, choice=0)
    trace.add_engine_events([TraceEvent("finished", 1.0, {"reason": "abort"})], choice=0)
    assert named(trace) == [("finished", {"choice": 0, "reason": "stop", "output_tokens": 7})]


def test_more_events_than_the_bound_are_counted_and_dropped():
    trace = RequestTrace()
    trace.add_engine_events([TraceEvent("prefill_chunk", float(i), {}) for i in range(MAX_EVENTS + 3)])
    trace.record_end("length", output_tokens=1)
    assert (len(trace), trace.num_dropped) == (MAX_EVENTS, 4)
