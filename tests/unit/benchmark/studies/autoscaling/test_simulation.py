import re

import pytest

from rayinfer.benchmark.studies.autoscaling.figure import WIDTH, svg
from rayinfer.benchmark.studies.autoscaling.policies import ByEngineMetrics, ByOngoingRequests, FixedCount
from rayinfer.benchmark.studies.autoscaling.policy_report import run_autoscaling_benchmark
from rayinfer.benchmark.studies.autoscaling.simulated_engine import EnginePace, SimulatedEngine, SimulatedRequest
from rayinfer.benchmark.studies.autoscaling.simulation import MAX_WAITING, Simulation
from rayinfer.benchmark.studies.autoscaling.trace import TracedRequest, arrivals_by_minute, read_trace, with_pauses
from rayinfer.errors import ConfigError
from rayinfer.routing.autoscaling_policy import ModelLoad
from rayinfer.routing.autoscaling_settings import AutoscalingSettings

PACE = EnginePace(step_s=0.01, prompt_token_s=0.001, output_token_s=0.0, chunk_tokens=100, max_num_seqs=4, start_s=5.0)
SETTINGS = AutoscalingSettings(max_replicas=4, target_waiting_tokens=1000, downscale_delay_s=60, ttft_objective_s=1.0)


def steady(seconds, per_second=1, prompt=100, output=10, since=0):
    return [TracedRequest(since + number / per_second, prompt, output) for number in range(int(seconds * per_second))]


def run(requests, policy, initial=1):
    return Simulation(requests, policy, PACE, objective_s=1.0).run(initial=initial, tail_s=10)


def test_a_lone_request_takes_its_steps():
    engine = SimulatedEngine(PACE, 0.0)
    request = SimulatedRequest(TracedRequest(0.0, 250, 3))
    engine.add(request, 1.0)
    while engine.step_ends_s is not None:
        engine.end_step()
    assert request.first_token_s == pytest.approx(1.0 + 3 * 0.01 + 0.25)  # three chunks
    assert request.finished_s == pytest.approx(request.first_token_s + 2 * 0.01)
    assert (engine.num_requests, engine.waiting_tokens, engine.cache_tokens) == (0, 0, 0)


def test_requests_of_an_engine_that_goes_keep_the_tokens_they_have():
    engine = SimulatedEngine(PACE, 0.0)
    requests = [SimulatedRequest(TracedRequest(0.0, 50, 5)) for _ in range(3)]
    for request in requests:
        engine.add(request, 0.0)
    engine.end_step()  # of the first prompt alone: the others came during it
    engine.end_step()
    assert set(map(id, engine.stop())) == set(map(id, requests))
    assert [request.num_output for request in requests] == [2, 1, 1]
    assert requests[0].num_to_compute == 52


def test_every_request_is_answered_or_counted_as_lost():
    calm = run(steady(60), FixedCount(num_engines=1))
    assert (len(calm.first_token_s), calm.num_lost, calm.attainment(1.0)) == (60, 0, 1.0)
    flood = run(steady(1, per_second=2 * MAX_WAITING, prompt=1000), FixedCount(num_engines=1))
    assert flood.num_refused > 0
    assert flood.num_given_up > 0
    assert len(flood.first_token_s) + flood.num_lost == 2 * MAX_WAITING


def test_engines_come_with_a_burst_and_go_after_it_without_a_loss():
    trace = steady(30) + steady(60, per_second=20, since=30) + steady(300, since=90)
    replay = run(trace, ByEngineMetrics(SETTINGS))
    assert max(replay.counts) > 1
    assert replay.counts[-1] == 1
    assert replay.num_lost == 0
    assert len(replay.first_token_s) == len(trace)
    assert replay.attainment(1.0) > run(trace, FixedCount(num_engines=1)).attainment(1.0)
    assert replay.engine_s < run(trace, FixedCount(num_engines=4), initial=4).engine_s


@pytest.mark.parametrize(("seconds", "per_second"), [(30, 20), (5, 60)])
def test_a_burst_that_meets_no_engine_is_answered_by_as_many_as_it_takes(seconds, per_second):
    trace = steady(10) + steady(seconds, per_second, since=200)
    settings = SETTINGS.model_copy(update={"min_replicas": 0, "idle_timeout_s": 30.0, "upscale_delay_s": 10.0})
    simulation = Simulation(trace, ByEngineMetrics(settings), PACE, objective_s=1.0, most_engines=4)
    replay = simulation.run(initial=1, tail_s=10)
    assert replay.counts[199] == 0
    assert max(replay.counts[200:205]) == 4  # before the first of them is there
    assert replay.num_lost == 0


def test_the_plain_policy_waits_for_its_delays_and_divides_what_is_ongoing():
    policy = ByOngoingRequests(
        min_replicas=1,
        max_replicas=4,
        target_ongoing_requests=2,
        look_back_s=1,
        upscale_delay_s=30,
        downscale_delay_s=60,
    )
    load, target, seen = ModelLoad(num_engines=1), 1, []
    for second in range(200):
        target = policy.decide(float(second), target, load, 6 if second < 100 else 0)
        seen.append(target)
    assert (seen[29], seen[30], seen[159], seen[160]) == (1, 3, 3, 1)


def test_a_trace_is_read_in_order_and_anything_else_is_refused(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n61.0,20,0\n2.5,10,4\n")
    assert read_trace(file, speed=2.0) == [TracedRequest(1.25, 10, 4), TracedRequest(30.5, 20, 1)]
    assert arrivals_by_minute(read_trace(file)) == [1, 1]
    for text in ("a,b\n1,2\n", "arrived_at,num_prefill_tokens,num_decode_tokens\n", ""):
        file.write_text(text)
        with pytest.raises(ConfigError):
            read_trace(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "missing.csv")


def test_pauses_are_put_into_a_trace_and_nothing_is_lost_of_it():
    trace = with_pauses(steady(30), every_s=10, pause_s=100)
    assert [request.arrival_s for request in trace[8:12]] == [8, 9, 110, 111]
    assert (len(trace), trace[-1].arrival_s) == (30, 229)


def test_without_requests_all_engines_go_and_the_next_request_brings_one():
    settings = SETTINGS.model_copy(update={"min_replicas": 0, "idle_timeout_s": 20.0, "downscale_delay_s": 5.0})
    trace = with_pauses(steady(40), every_s=20, pause_s=60)
    replay = run(trace, ByEngineMetrics(settings))
    assert (replay.counts[19], replay.counts[75], replay.counts[99]) == (1, 0, 1)
    assert replay.num_lost == 0
    assert max(replay.first_token_s) > PACE.start_s  # of those who came while there was none


def test_the_picture_has_a_panel_for_each_trace_and_keeps_within_its_width():
    traces = {"calm": steady(120), "calm, with pauses": with_pauses(steady(120), every_s=60, pause_s=60)}
    report = run_autoscaling_benchmark(traces, PACE, SETTINGS, command="bench")
    picture = svg(report, {name: arrivals_by_minute(requests) for name, requests in traces.items()})
    assert [picture.count(f">{name}</text>") for name in traces] == [1, 1]
    assert len(re.findall('<polyline class="(?!grid)', picture)) == 2 * 4
    points = re.findall(r"[ \"]([\d.]+),[\d.]+", picture)
    assert max(map(float, points)) <= WIDTH
    for left, anchor_class, text in re.findall(r'<text x="(\d+)" y="\d+" class="([^"]*)">([^<]*)<', picture):
        share = 0.5 if "middle" in anchor_class else 0.0 if "end" in anchor_class else 1.0
        assert int(left) + 5.6 * share * len(text) <= WIDTH, text


def test_a_report_has_every_policy_for_every_trace():
    report = run_autoscaling_benchmark({"calm": steady(20)}, PACE, SETTINGS, command="bench")
    names = [outcome.policy for outcome in report.outcomes]
    assert len(set(names)) == len(names) >= 6
    outcome = report.outcomes[-1]
    assert len(outcome.counts()) == outcome.seconds
    assert sum(outcome.counts()) / 3600 == pytest.approx(outcome.engine_hours, abs=0.001)
