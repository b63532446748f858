"""GPU benchmark: all cases one after the other, the most important first, each saved as soon as it is measured."""

import gc
import tempfile
import traceback
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import torch

from rayinfer.benchmark.gpu.cases import CASES, FULL, QUICK, TINY, Case
from rayinfer.benchmark.gpu.checks import CHECKED_TYPES, run_checks
from rayinfer.benchmark.gpu.deadline import Deadline, OutOfTime
from rayinfer.benchmark.gpu.gpu_report import Check, GpuReport, judge, new_row
from rayinfer.benchmark.gpu.measurement import Measurement
from rayinfer.benchmark.gpu.timing import describe_card, measure_limits
from rayinfer.errors import ConfigError

NAME = "gpu"
Log = Callable[[str], None]


def run_gpu_benchmark(
    output: Path,
    log: Log,
    *,
    is_quick: bool = False,
    is_dry_run: bool = False,
    only: Collection[str] = (),
    limit_s: float | None = None,
    command: str = "rayinfer bench gpu",
) -> GpuReport:
    """Measure the card and then the engine on it; gpu.json, .md and .svg in `output` grow with every case.

    After `limit_s`, by default eight minutes or two, no case begins, and the report lists what was left out. A dry
    run takes tiny shapes on any machine. Raises ConfigError where there is no GPU and it is none.
    """
    device = find_device(is_dry_run=is_dry_run)
    cases = [case for case in CASES if (case.name in only if only else case.is_quick or not is_quick)]
    check_names(only, [case.name for case in CASES], "workload")
    scale = TINY if is_dry_run else QUICK if is_quick else FULL
    deadline = Deadline(limit_s if limit_s is not None else (QUICK if is_quick else FULL).limit_s)
    log(f"measuring {describe_card(device)}")
    limits = measure_limits(device, tiny=is_dry_run)
    report = GpuReport(
        card=describe_card(device),
        is_dry_run=is_dry_run,
        copy_bytes_per_s=limits.copy_bytes_per_s,
        matmul_flops_per_s=limits.matmul_flops_per_s,
        command=command,
        limit_s=deadline.limit_s,
    )
    with tempfile.TemporaryDirectory() as folder:
        _check(Path(folder), report, deadline, log)
        measurement = Measurement(limits, scale, Path(folder), device, deadline)
        for case in cases:
            _measure(case, measurement, report, deadline, log)
            report.took_s = deadline.elapsed_s
            report.write(output, NAME)
            if device.type == "cuda":
                torch.cuda.empty_cache()
    log("\n".join([line for table in report.tables() for line in (table.title, *table.lines())] + report.notes()))
    return report


def find_device(*, is_dry_run: bool) -> torch.device:
    """Return the GPU; in a dry run any device. Raises ConfigError."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not is_dry_run:
        raise ConfigError("there is no GPU here: --dry-run takes tiny shapes and says nothing about a GPU")
    return device


def check_names(names: Collection[str], known: Sequence[str], kind: str) -> None:
    """Raise ConfigError for a name that is not known."""
    if unknown := sorted(set(names) - set(known)):
        raise ConfigError(f"there is no {kind} {', '.join(unknown)}: choose from {', '.join(known)}")


def _check(folder: Path, report: GpuReport, deadline: Deadline, log: Log) -> None:
    """Compare the engine with the reference, type by type until the deadline."""
    for dtype in CHECKED_TYPES:
        checks: list[Check] = []
        try:
            deadline.check()
            checks = run_checks(folder, dtype, tiny=report.is_dry_run)
        except OutOfTime as error:
            report.shortened.append(f"checks in {dtype}: left out, {error}")
        except Exception as error:  # figures are still worth having, beside the failed check
            checks = [Check(name=dtype, is_right=False, detail=_one_line(error))]
        for check in checks:
            report.checks.append(check)
            log(str(check))


def _measure(case: Case, measurement: Measurement, report: GpuReport, deadline: Deadline, log: Log) -> None:
    row, started_s = new_row(case), deadline.elapsed_s
    report.rows.append(row)
    try:
        deadline.check()
        if case.kind == "kernel":
            shortfall = measurement.measure_kernel(row, report.kernels)
        elif case.kind == "products":
            shortfall = measurement.measure_products(row, report.products)
        else:
            shortfall = measurement.measure(case, row)
        if shortfall:
            row.rate += f" ({shortfall})"
            report.shortened.append(f"{case.name}: {shortfall}")
        if not report.is_dry_run:
            judge(row, report.rows)
    except OutOfTime as error:
        row.error = f"left out: {error}"
        report.shortened.append(f"{case.name}: {row.error}")
    except Exception as error:  # the other cases are still measured
        row.error = _one_line(error)
        log(traceback.format_exc())
    gc.collect()
    share = "" if row.share is None else f", {row.share:.0%} of the roofline"
    log(f"{row.name}: {row.error or row.rate}{share} ({deadline.elapsed_s - started_s:.0f} s)")


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
