import io
import re

from rich.console import Console

from rayinfer.startup_steps import StartupStep
from rayinfer_deployments.cli.start_lines import LOADING, StartLines
from rayinfer_deployments.cli.terminal import Phases
from rayinfer_deployments.engine.start_reports import StartReport

FIRST, SECOND = "rayinfer-engine-a", "rayinfer-engine-b"


def report(process, name, seconds=None, num_done=None, num_parts=None):
    step = StartupStep(name=name, seconds=seconds, num_done=num_done, num_parts=num_parts)
    return StartReport(process=process, step=step)


def lines_after(reports, *, num_processes):
    """Return the output to a file, without the times of the phases, which pass while the test runs."""
    written = io.StringIO()
    with Phases(Console(file=written)) as phases:
        phases.enter("starting the service")
        StartLines(phases, num_processes=num_processes).show(reports)
        phases.finish()
    return [re.sub(r"^(  \w.*) \(\d+\.\d s\)$", r"\1", line) for line in written.getvalue().splitlines()]


def test_each_step_that_is_over_has_a_line_in_the_phase_of_loading():
    reports = [
        report(FIRST, "importing torch"),
        report(FIRST, "importing torch", 1.72),
        report(FIRST, "compiling kernels", None, 3, 18),
        report(FIRST, "compiling kernels", 12.0, 18, 18),
        report(FIRST, "warming up", 0.02),  # too short to be read
    ]
    assert lines_after(reports, num_processes=1) == [
        "  starting the service",
        "    importing torch (1.7 s)",
        "    compiling kernels (12.0 s)",
        f"  {LOADING}",
    ]


def test_start_lines_name_the_engine_and_rank_where_there_are_several():
    reports = [
        report(SECOND, "warming up", 1.0),
        report(FIRST, "warming up", 2.0),
        report(f"{SECOND}-rank-1", "packing weights", 3.0),
    ]
    assert lines_after(reports, num_processes=4)[1:-1] == [
        "    engine 1: warming up (1.0 s)",
        "    engine 2: warming up (2.0 s)",
        "    engine 1 rank 1: packing weights (3.0 s)",
    ]


def test_without_reports_nothing_changes():
    assert lines_after([], num_processes=1) == ["  starting the service"]


def test_a_terminal_shows_the_step_that_lasts_with_its_count():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with Phases(console) as phases:
        lines = StartLines(phases, num_processes=1)
        lines.show([report(FIRST, "compiling kernels", None, 3, 18)])
        assert phases.shown == f"{LOADING} (compiling kernels 3 of 18)"
        lines.show([report(FIRST, "compiling kernels", 12.0, 18, 18)])
        assert phases.shown == f"{LOADING} ..."
