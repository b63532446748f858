"""All workloads one after the other, the most important first, each saved as soon as it is measured."""

import gc
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import torch

from rayinfer.benchmark.gpu.cases import WORKS, Work
from rayinfer.benchmark.gpu.checks import CHECKED_TYPES, run_checks
from rayinfer.benchmark.gpu.estimates import CHECKS, estimates
from rayinfer.benchmark.gpu.limits import describe_card, measure_limits
from rayinfer.benchmark.gpu.measuring import Measuring
from rayinfer.benchmark.gpu.report import report_lines, write_report
from rayinfer.benchmark.gpu.results import Check, GpuReport, judge, new_row
from rayinfer.benchmark.gpu.scales import FULL, QUICK, TINY
from rayinfer.benchmark.gpu.time_budget import Deadline, OutOfTime, Timetable
from rayinfer.errors import ConfigError

NAME = "gpu"
START_S = 10.0  # Python and torch, before the clock can be looked at


def run_gpu_benchmark(
    output: Path,
    say: Callable[[str], None],
    *,
    is_quick: bool = False,
    is_dry_run: bool = False,
    only: Collection[str] = (),
    limit_s: float | None = None,
    command: str = "rayinfer bench gpu",
    clock: Callable[[], float] = time.monotonic,
) -> GpuReport:
    """Measure the card and then the engine on it; gpu.json, .md and .svg in `output` grow with every workload.

    Everything ends within `limit_s`, by default eight minutes or two: what does not fit is left out, and the report
    says so. A dry run takes tiny shapes and runs anywhere. Raises ConfigError where there is no GPU and it is none.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not is_dry_run:
        raise ConfigError("there is no GPU here: --dry-run takes tiny shapes and says nothing about a GPU")
    works = _chosen(only, is_quick)
    scale = TINY if is_dry_run else QUICK if is_quick else FULL
    limit_s = limit_s if limit_s is not None else (QUICK if is_quick else FULL).limit_s
    deadline = Deadline(limit_s - START_S, clock)
    say(f"measuring {describe_card(device)}")
    limits = measure_limits(device, tiny=is_dry_run)
    report = GpuReport(
        card=describe_card(device),
        is_dry_run=is_dry_run,
        copy_bytes_per_s=limits.copy_bytes_per_s,
        matmul_flops_per_s=limits.matmul_flops_per_s,
        limit_s=limit_s,
    )
    timetable = Timetable(deadline, estimates(works, scale, limits, len(CHECKED_TYPES)))
    with tempfile.TemporaryDirectory() as folder:
        _check(Path(folder), report, timetable, say)
        measuring = Measuring(limits, scale, Path(folder), device)
        for work in works:
            _measure(work, measuring, report, timetable, say)
            report.took_s = START_S + deadline.elapsed_s
            write_report(report, output, NAME, command)
            if device.type == "cuda":
                torch.cuda.empty_cache()
    for line in report_lines(report):
        say(line)
    return report


def _chosen(only: Collection[str], is_quick: bool) -> Sequence[Work]:
    if unknown := set(only) - {work.name for work in WORKS}:
        known = ", ".join(work.name for work in WORKS)
        raise ConfigError(f"there is no workload {', '.join(sorted(unknown))}: choose from {known}")
    return [work for work in WORKS if (work.name in only if only else work.is_quick or not is_quick)]


def _check(folder: Path, report: GpuReport, timetable: Timetable, say: Callable[[str], None]) -> None:
    """Compare the engine with the reference, type by type as far as there is time."""
    try:
        work_time = timetable.begin(CHECKS)
        for number in work_time.runs():
            for check in run_checks(folder, CHECKED_TYPES[number], tiny=report.is_dry_run):
                report.checks.append(check)
                say(str(check))
        if work_time.shortfall:
            report.shortened.append(f"{CHECKS}: {work_time.shortfall}")
    except OutOfTime as error:
        report.shortened.append(f"{CHECKS}: left out, {error}")
    except Exception as error:  # figures are worth having all the same, with this beside them
        report.checks.append(Check(name="all", is_right=False, detail=_in_words(error)))


def _measure(
    work: Work, measuring: Measuring, report: GpuReport, timetable: Timetable, say: Callable[[str], None]
) -> None:
    row, started_s = new_row(work), timetable.deadline.elapsed_s
    report.rows.append(row)
    try:
        work_time = timetable.begin(work.name)
        if work.kind == "kernel":
            measuring.measure_kernel(row, report.kernels, work_time)
        elif work.kind == "products":
            measuring.measure_products(row, report.products, work_time)
        else:
            measuring.measure(work, row, work_time)
        if work_time.shortfall:
            row.rate += f" ({work_time.shortfall})"
            report.shortened.append(f"{work.name}: {work_time.shortfall}")
        if not report.is_dry_run:
            judge(row, report.rows)
    except OutOfTime as error:
        row.error = f"left out: {error}"
        report.shortened.append(f"{work.name}: {row.error}")
    except Exception as error:  # what fails costs the others nothing
        row.error = _in_words(error)
        say(traceback.format_exc())
    gc.collect()
    share = "" if row.share is None else f", {row.share:.0%} of the floor"
    say(f"{row.name}: {row.error or row.rate}{share} ({timetable.deadline.elapsed_s - started_s:.0f} s)")


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
