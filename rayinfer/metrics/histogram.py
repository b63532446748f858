"""Histogram as plain counters, and the buckets of vLLM's and TGI's metrics."""

from bisect import bisect_left
from collections.abc import Sequence

# vLLM's buckets, and below them finer ones: a small model's tokens come faster than 10 ms.
FIRST_TOKEN_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
INTER_TOKEN_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
MIGRATION_S = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 20.0),
    *(30.0, 60.0, 120.0),
)
REQUEST_S = (
    *(0.001, 0.005, 0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TOKENS = tuple(float(factor * 10**power) for power in range(6) for factor in (1, 2, 5))  # 1 to 500,000
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)
TGI_S = tuple(float(f"{0.0001 * 1.5**power:.6g}") for power in range(35))


class Histogram:
    """Histogram of durations or counts; several equal observations cost as much as one."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Observe a value `count` times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count
