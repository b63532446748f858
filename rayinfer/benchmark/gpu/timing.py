"""Timing on a device: single runs, calls with cold caches, and the peak rates of the GPU."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from rayinfer.benchmark.gpu.roofline import CardLimits

COPY_BYTES = 4 << 30  # far more than any cache holds
MATMUL_SIZE = 8192
WARM_UP_RUNS, RUNS = 3, 15
TINY_COPY_BYTES, TINY_MATMUL_SIZE = 1 << 20, 64
COLD_BYTES = 512 << 20  # read between two reads of the same memory, more than any processor caches


def describe_card(device: torch.device) -> str:
    """Return the card's name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU: no figure of a GPU"


def measure_limits(device: torch.device, *, tiny: bool = False) -> CardLimits:
    """Copy one large tensor into another and multiply two large matrices of random numbers; medians."""
    num_bytes, size = (TINY_COPY_BYTES, TINY_MATMUL_SIZE) if tiny else (COPY_BYTES, MATMUL_SIZE)
    source = torch.randint(0, 255, (num_bytes,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_s = _median_s(lambda: target.copy_(source), device)
    left, right = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    out = torch.empty(size, size, dtype=torch.bfloat16, device=device)
    matmul_s = _median_s(lambda: torch.mm(left, right, out=out), device)
    return CardLimits(copy_bytes_per_s=2 * num_bytes / copy_s, matmul_flops_per_s=2 * size**3 / matmul_s)


def _median_s(run: Callable[[], object], device: torch.device) -> float:
    for _ in range(WARM_UP_RUNS):
        run()
    return statistics.median(_run_s(run, device) for _ in range(RUNS))


def seconds_per_call(calls: Sequence[Callable[[], object]], device: torch.device, num_repeats: int) -> float:
    """Return the median over repeats of all calls one after the other; on a GPU in one graph, without host overhead."""

    def run() -> None:
        for call in calls:
            call()

    if device.type == "cuda":
        run()  # compiles the kernels
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        graph.replay()
        run = graph.replay
    return statistics.median(_run_s(run, device) for _ in range(num_repeats)) / len(calls)


def _run_s(run: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of one run, by the device's own events where it has them."""
    if device.type != "cuda":
        started = time.perf_counter()
        run()
        return time.perf_counter() - started
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
