"""Roofline benchmark of the CPU kernels: each operation beside the rate or the bandwidth that limits it.

The measuring process is a child of the command: the environment limits the instructions of torch and oneDNN.
"""

import ctypes
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Any

import torch

import rayinfer_kernels
from rayinfer.benchmark.kernels.kernel_cases import KernelCase, Sizes, kernel_cases
from rayinfer.benchmark.peers.machine import memory_read_gb_s
from rayinfer.benchmark.report import Environment, Table, describe_environment
from rayinfer.config import cache_folder
from rayinfer.errors import RayinferError

CASE_S, MIN_RUNS = 0.2, 3  # of one case, ours and torch's each
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's mallopt
HEADS = ("operation", "rows", "µs", "Gop/s", "GB/s", "% of its limit", "limit", "torch, x the time")


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Measured peak rates of the threads: operations a second in registers by type, and bytes read from memory."""

    gop_s: dict[str, float]
    read_gb_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelResult:
    """Best time of one case, beside the time that its operations or bytes need at the limits."""

    operation: str
    shape: str
    number: str
    num_rows: int
    seconds: float
    gop_s: float
    gb_s: float
    torch_seconds: float | None
    share: float = 0.0  # of the limit that binds; above 1 where caches hold what is read
    is_memory_bound: bool = False

    def row(self) -> tuple[object, ...]:
        """Return a row below HEADS."""
        is_linear = self.operation == "linear"
        name = self.shape if is_linear else f"{self.operation}, {self.number}, {self.shape}"
        ratio = None if self.torch_seconds is None else self.torch_seconds / self.seconds
        figures = (1e6 * self.seconds, self.gop_s, self.gb_s, 100 * self.share)
        limit = "memory" if self.is_memory_bound else "products"
        return name, self.num_rows, *(float(f"{each:.3g}") or None for each in figures), limit, ratio


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelReport:
    """All results of one kernel path."""

    kernels: str
    num_threads: int
    limits: Limits
    results: list[KernelResult]
    command: str = ""
    environment: Environment = field(default_factory=describe_environment)

    def tables(self) -> list[Table]:
        """Return the limits, a table for each format of products, and one for all else."""
        peaks = [(f"{name}, Gop/s", rate) for name, rate in self.limits.gop_s.items()]
        title = f"Limits, {self.kernels}, {self.num_threads} threads"
        found = [Table(title, ("", "measured"), [*peaks, ("read, GB/s", self.limits.read_gb_s)])]
        groups: dict[str, list[KernelResult]] = {}
        for result in self.results:
            group = f"linear, {result.number}" if result.operation == "linear" else "others"
            groups.setdefault(group, []).append(result)
        return [*found, *(Table(group, HEADS, [each.row() for each in rows]) for group, rows in groups.items())]


def measure_kernels(
    sizes: Sizes,
    log: Callable[[str], None],
    case_s: float = CASE_S,
    measure_read_gb_s: Callable[[int, int], float] = memory_read_gb_s,
) -> tuple[Limits, list[KernelResult]]:
    """Measure every case, and the limits between them, in this process, whose kernels are configured."""

    def measure_limits() -> Limits:
        log("peak rates and bandwidth")
        rates = {name: rayinfer_kernels.measure_peak_rate(dtype) / 1e9 for name, dtype in DTYPES.items()}
        return Limits(gop_s=rates, read_gb_s=measure_read_gb_s(torch.get_num_threads(), 2 * sizes.cold_bytes))

    limits, results = [measure_limits()], []
    for _, cases in groupby(kernel_cases(sizes), lambda case: (case.operation, case.number)):
        for case in cases:
            log(f"{case.operation}, {case.number}, {case.shape}, rows: {case.num_rows}")
            results.append((case.peak, _measured(case, case_s)))
        limits.append(measure_limits())
    best = _best_limits(limits)
    return best, [_beside(best, peak, result) for peak, result in results]


def _best_limits(limits: Sequence[Limits]) -> Limits:
    """Return the best of each, as the best run of each case counts: other programs on the machine take from both."""
    rates = {name: max(each.gop_s[name] for each in limits) for name in DTYPES}
    return Limits(gop_s=rates, read_gb_s=max(each.read_gb_s for each in limits))


def _measured(case: KernelCase, case_s: float) -> KernelResult:
    seconds, torch_seconds = _best_times(case, case_s)
    return KernelResult(
        operation=case.operation,
        shape=case.shape,
        number=case.number,
        num_rows=case.num_rows,
        seconds=seconds,
        gop_s=case.operations / seconds / 1e9,
        gb_s=case.num_bytes / seconds / 1e9,
        torch_seconds=torch_seconds,
    )


def _beside(limits: Limits, peak: torch.dtype | None, result: KernelResult) -> KernelResult:
    """Return the result with its share of the limit that binds."""
    reading = result.gb_s / limits.read_gb_s
    computing = result.gop_s / (limits.gop_s[str(peak)[6:]] if peak else 1.0)
    return replace(result, share=max(reading, computing), is_memory_bound=reading >= computing)


def _best_times(case: KernelCase, case_s: float) -> tuple[float, float | None]:
    """Run ours and torch's in turns; the best run of each counts, which other programs on the machine disturb least.

    One thread's processor time is measured, without what others took from it.
    """
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    runs = [run for run in (case.run, case.run_torch) if run is not None]
    for run in runs:
        run()
    best, started, num_runs = [float("inf")] * len(runs), time.perf_counter(), 0
    while num_runs < MIN_RUNS or time.perf_counter() - started < case_s * len(runs):
        num_runs += 1
        for index, run in enumerate(runs):
            before = clock()
            run()
            best[index] = min(best[index], clock() - before)
    return best[0], best[1] if case.run_torch else None


def run_kernel_benchmark(
    kernels: str,
    variables: Mapping[str, str],
    num_threads: int,
    sizes: Sizes,
    log: Callable[[str], None],
    *,
    case_s: float = CASE_S,
    command: str = "",
) -> KernelReport:
    """Measure a kernel path in a child process with these environment variables; raises RayinferError if it fails."""
    plan = {"kernels": kernels, "num_threads": num_threads, "sizes": asdict(sizes), "case_s": case_s}
    environment = [f"{name}={value}" for name, value in {**variables, "OMP_NUM_THREADS": num_threads}.items()]
    child_command = ["env", *environment, sys.executable, "-m", __name__, json.dumps(plan)]
    found: dict[str, Any] | None = None
    with subprocess.Popen(child_command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            message = json.loads(line)
            found = message.get("report", found)
            if "log" in message:
                log(message["log"])
    if found is None:
        raise RayinferError(f"the measuring process ended with exit code {child.returncode}")
    results = [KernelResult(**result) for result in found["results"]]
    limits = Limits(**found["limits"])
    return KernelReport(
        kernels=found["kernels"], num_threads=num_threads, limits=limits, results=results, command=command
    )


def keep_freed_memory() -> None:
    """Make this process allocate from memory that it has freed; elsewhere than with glibc nothing happens.

    Otherwise large results have fresh pages, which the system fills with zeros: that takes as long as the products.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def _measure_here(plan: dict[str, Any]) -> None:
    keep_freed_memory()
    torch.set_num_threads(plan["num_threads"])
    rayinfer_kernels.configure(cache_folder() / "kernels", plan["kernels"], is_required=True)
    limits, results = measure_kernels(Sizes(**plan["sizes"]), lambda text: _send(log=text), plan["case_s"])
    kernels = rayinfer_kernels.cpu_kernels_status().path
    _send(report={"kernels": kernels, "limits": asdict(limits), "results": [asdict(each) for each in results]})


def _send(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _measure_here(json.loads(sys.argv[1]))
