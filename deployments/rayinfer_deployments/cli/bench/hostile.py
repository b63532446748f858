"""`rayinfer bench hostile`: what requests that do harm cost another client's stream."""

import contextlib
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from rayinfer.config import DEFAULT_MODEL
from rayinfer.errors import ConfigError
from rayinfer_deployments.cli.failures import in_one_line, interrupt_on_signals
from rayinfer_deployments.cluster.profiles import Profile
from rayinfer_deployments.cluster.ray_environment import set_ray_settings

if TYPE_CHECKING:
    from rayinfer.benchmark.control_plane.overhead.hostile_load import HostileReport

HEADS = ("sent meanwhile", "gaps", "p50 ms", "p99 ms", "max ms", "p99 moved by ms", "answers")


@in_one_line
def hostile(
    base_url: Annotated[
        str | None, typer.Option(help="a running service (default: one of its own, with an engine that has no model)")
    ] = None,
    model: Annotated[
        str, typer.Option(help="the model's name there, else whose tokenizer makes the text")
    ] = DEFAULT_MODEL,
    kinds: Annotated[str, typer.Option(help="kinds of requests, with commas between (default: each, and all)")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="rounds; each has all kinds, and a phase without any")] = 5,
    seconds: Annotated[float, typer.Option(min=1.0, help="of each kind in a round")] = 4.0,
    interval_ms: Annotated[float, typer.Option(min=0.1, help="between two tokens of an engine without a model")] = 20.0,
    limit_ms: Annotated[float, typer.Option(min=0.0, help="by how much the stream's p99 may move")] = 20.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the result to this file")] = None,
) -> None:
    """Gaps between one stream's tokens beside hostile requests; exit code 1 if a kind moves their p99 too far."""
    interrupt_on_signals()
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from rayinfer.benchmark.control_plane.overhead.hostile_load import HostilePlan, measure_hostile_load
    from rayinfer.benchmark.control_plane.overhead.hostile_requests import hostile_kinds
    from rayinfer.benchmark.load.report import write_json

    chosen, known = [part.strip() for part in kinds.split(",") if part.strip()], hostile_kinds()
    if wrong := [kind for kind in chosen if kind not in known]:
        raise ConfigError(f"expected kinds out of {', '.join(known)}, got {', '.join(wrong)}")
    console = Console()
    with (
        _service(base_url, model, interval_ms) as (url, name),
        Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), transient=True) as progress,
    ):
        task = progress.add_task("starting")
        plan = HostilePlan(base_url=url, model=name, kinds=chosen, num_rounds=rounds, phase_s=seconds)
        command = shlex.join(["rayinfer", *sys.argv[1:]])
        report = measure_hostile_load(plan, command, lambda text: progress.update(task, description=text))
    _print_report(report, console)
    if json_file is not None:
        write_json(report, json_file)
    if any(result.moved_ms > limit_ms for result in report.results):
        raise typer.Exit(1)


@contextlib.contextmanager
def _service(base_url: str | None, model: str, interval_ms: float):  # type: ignore[no-untyped-def]
    if base_url is not None:
        yield base_url, model
        return
    set_ray_settings(owns_ray=True)
    # After the environment is set: these import Ray, which reads it.
    from rayinfer_deployments.overhead.measured_service import MODEL, ServicePlan, paced_service

    plan = ServicePlan(model=model, with_proxy=False, interval_s=interval_ms / 1e3)
    with paced_service(Profile.LATENCY, plan) as service:
        yield service.url, MODEL


def _print_report(report: "HostileReport", console: Console) -> None:
    from rich.table import Table

    from rayinfer.benchmark.load.report import format_figure

    table = Table(*HEADS)
    for result in report.results:
        gaps, answers = result.gaps, ", ".join(f"{status}: {number}" for status, number in result.answers.items())
        row = (result.kind, gaps.count, gaps.p50, gaps.p99, gaps.max, result.moved_ms, answers)
        table.add_row(*map(format_figure, row))
    console.print(table)
