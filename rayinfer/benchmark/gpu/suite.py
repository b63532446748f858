"""All workloads one after the other, each kept as soon as it is measured."""

import gc
import tempfile
import time
import traceback
from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from rich.console import Console

from rayinfer.benchmark.gpu.checks import run_checks
from rayinfer.benchmark.gpu.floors import CardLimits
from rayinfer.benchmark.gpu.limits import describe_card, measure_limits
from rayinfer.benchmark.gpu.measuring import FULL, QUICK, TINY, Measuring
from rayinfer.benchmark.gpu.report import print_report, write_report
from rayinfer.benchmark.gpu.results import Check, GpuReport, judge, new_row
from rayinfer.benchmark.gpu.works import WORKS, Work
from rayinfer.errors import ConfigError

NAME = "gpu"


def run_gpu_benchmark(
    output: Path,
    console: Console,
    *,
    is_quick: bool = False,
    is_dry_run: bool = False,
    only: Collection[str] = (),
    command: str = "rayinfer bench gpu",
) -> GpuReport:
    """Measure the card and then the engine on it; NAME.json, .md and .svg in `output` grow with every workload.

    A dry run takes tiny shapes and runs anywhere. Raises ConfigError where there is no GPU and it is none.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not is_dry_run:
        raise ConfigError("there is no GPU here: --dry-run takes tiny shapes and says nothing about a GPU")
    works = _chosen(only, is_quick)
    console.print(f"measuring {describe_card(device)}", markup=False)
    limits = measure_limits(device, tiny=is_dry_run)
    report = GpuReport(
        card=describe_card(device),
        is_dry_run=is_dry_run,
        copy_bytes_per_s=limits.copy_bytes_per_s,
        matmul_flops_per_s=limits.matmul_flops_per_s,
    )
    with tempfile.TemporaryDirectory() as folder:
        report.checks = _checked(Path(folder), is_dry_run, console)
        scale = TINY if is_dry_run else QUICK if is_quick else FULL
        measuring = Measuring(limits, scale, Path(folder), device)
        for work in works:
            _measure(work, measuring, limits, report, device, console)
            write_report(report, output, NAME, command)
    print_report(report, console)
    return report


def _chosen(only: Collection[str], is_quick: bool) -> Sequence[Work]:
    if unknown := set(only) - {work.name for work in WORKS}:
        known = ", ".join(work.name for work in WORKS)
        raise ConfigError(f"there is no workload {', '.join(sorted(unknown))}: choose from {known}")
    return [work for work in WORKS if (work.name in only if only else work.is_quick or not is_quick)]


def _checked(folder: Path, is_dry_run: bool, console: Console) -> list[Check]:
    try:
        checks = run_checks(folder, tiny=is_dry_run)
    except Exception as error:  # figures are worth having all the same, with this beside them
        checks = [Check(name="all", is_right=False, detail=_in_words(error))]
    for check in checks:
        console.print(f"{'right' if check.is_right else 'WRONG'}: {check.name}: {check.detail}", markup=False)
    return checks


def _measure(
    work: Work, measuring: Measuring, limits: CardLimits, report: GpuReport, device: torch.device, console: Console
) -> None:
    row, started = new_row(work), time.monotonic()
    report.rows.append(row)
    try:
        if work.kind == "kernel":
            measuring.measure_kernel(row, report.kernels)
        else:
            measuring.measure(work, row)
        if not report.is_dry_run:
            judge(row, report.rows)
    except Exception as error:  # what fails costs the others nothing
        row.error = _in_words(error)
        console.print(traceback.format_exc(), style="dim", markup=False)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    share = "" if row.share is None else f", {row.share:.0%} of the floor"
    seconds = time.monotonic() - started
    console.print(f"{row.name}: {row.error or row.rate}{share} ({seconds:.0f} s)", markup=False, highlight=False)


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
