from rayinfer.benchmark.control_plane.overhead.router_report import (
    RoleCost,
    RouterReport,
    ServiceCost,
)
from rayinfer.benchmark.control_plane.overhead.routing_decision import DecisionCost
from rayinfer.benchmark.report import Percentiles


def role(name, us, is_between=True):
    return RoleCost(role=name, is_between=is_between, num_processes=1, us_per_token=us, idle_percent=0.5)


SERVICE = ServiceCost(
    profile="latency",
    variant="sse-keys",
    num_streams=32,
    interval_ms=20.0,
    input_len=128,
    output_len=256,
    added_ttft=Percentiles(mean=4.0, p50=3.25, p95=5.0, p99=6.75, max=9.0, count=200),
    cpu_us_per_request=1500.0,
    cpu_us_per_token=64.5,
    cpu_us_per_token_runs=[70.0, 64.5, 61.0],
    tok_s=1600.0,
    tokens_per_chunk=1.0,
    roles=[role("router", 64.5), role("engine", 9.5, is_between=False)],
)
DECISION = DecisionCost(
    num_waiting=1000, num_engines=16, arrival_us=60.0, dispatch_us=30.0, p50_us=90.0, p99_us=150.0, num_decisions=10
)


def test_tables_hold_what_was_measured():
    report = RouterReport(command="rayinfer bench router", decisions=[DECISION], services=[SERVICE])
    decisions, services, processes = report.tables()
    assert decisions.rows == [(1000, 16, 60.0, 30.0, 90.0, 150.0)]
    assert services.rows == [("latency", "sse-keys", 3.25, 6.75, 64.5, "70 64.5 61", 1.0, 9.5, 1500.0)]
    assert processes.rows == [
        ("latency", "sse-keys", "router*", 64.5, 0.5),
        ("latency", "sse-keys", "engine", 9.5, 0.5),
    ]
    assert len(RouterReport(command="x", decisions=[], services=[SERVICE]).tables()) == 2
