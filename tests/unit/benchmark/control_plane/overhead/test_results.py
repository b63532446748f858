from io import StringIO

from rich.console import Console

from rayinfer.benchmark.control_plane.overhead.results import (
    RoleCost,
    RouterReport,
    ServiceCost,
    print_router_report,
    write_markdown,
)
from rayinfer.benchmark.control_plane.overhead.routing_decision import DecisionCost
from rayinfer.benchmark.load.report import Percentiles


def role(name, us, is_between=True):
    return RoleCost(role=name, is_between=is_between, num_processes=1, us_per_token=us, idle_percent=0.5)


SERVICE = ServiceCost(
    profile="latency",
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


def test_the_tables_tell_what_was_measured(tmp_path):
    report = RouterReport(command="rayinfer bench router", decisions=[DECISION], services=[SERVICE])
    write_markdown(report, tmp_path / "router.md")
    text = (tmp_path / "router.md").read_text()
    assert "| 1,000 | 16 | 60 | 30 | 90 | 150 |" in text
    assert "| latency | 3.25 | 6.75 | 64.5 | 70 64.5 61 | 1 | 9.5 | 1,500 |" in text
    assert "| latency | router* | 64.5 | 0.5 |" in text
    assert "| latency | engine | 9.5 | 0.5 |" in text
    assert "`rayinfer bench router`" in text
    console = Console(file=StringIO(), width=200)
    print_router_report(report, console)
    assert "64.5" in console.file.getvalue()


def test_what_was_not_measured_has_no_table(tmp_path):
    write_markdown(RouterReport(command="x", decisions=[], services=[SERVICE]), tmp_path / "router.md")
    assert "routing decision" not in (tmp_path / "router.md").read_text()
