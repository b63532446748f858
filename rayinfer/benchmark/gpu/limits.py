"""Peak rates of the GPU: copy bandwidth and matrix product throughput."""

import statistics
import time
from collections.abc import Callable

import torch

from rayinfer.benchmark.gpu.roofline import CardLimits

COPY_BYTES = 4 << 30  # far more than any cache holds
MATMUL_SIZE = 8192
WARM_UP_RUNS, RUNS = 3, 15
TINY_COPY_BYTES, TINY_MATMUL_SIZE = 1 << 20, 64


def measure_limits(device: torch.device, *, tiny: bool = False) -> CardLimits:
    """Copy one large tensor into another and multiply two large matrices of random numbers; medians."""
    copy_bytes, size = (TINY_COPY_BYTES, TINY_MATMUL_SIZE) if tiny else (COPY_BYTES, MATMUL_SIZE)
    return CardLimits(
        copy_bytes_per_s=2 * copy_bytes / _copy_s(copy_bytes, device),
        matmul_flops_per_s=2 * size**3 / _matmul_s(size, device),
    )


def _copy_s(num_bytes: int, device: torch.device) -> float:
    source = torch.randint(0, 255, (num_bytes,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return median_s(lambda: target.copy_(source), device)


def _matmul_s(size: int, device: torch.device) -> float:
    left, right = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    out = torch.empty(size, size, dtype=torch.bfloat16, device=device)
    return median_s(lambda: torch.mm(left, right, out=out), device)


def median_s(run: Callable[[], object], device: torch.device, num_runs: int = RUNS) -> float:
    """Return the median seconds of one run, timed by the device's own events where it has them."""
    for _ in range(WARM_UP_RUNS):
        run()
    return statistics.median(_timed(run, device) for _ in range(num_runs))


def _timed(run: Callable[[], object], device: torch.device) -> float:
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


def describe_card(device: torch.device) -> str:
    """Return the card's name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU: no figure of a GPU"
