"""GPU idle time between two decoding steps."""

import itertools
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.autograd.profiler_util import DeviceType  # type: ignore[attr-defined]

from rayinfer.engine.loop.engine import Engine


class Busy(NamedTuple):
    """One kernel or copy on the GPU, in microseconds."""

    start: float
    end: float
    name: str


def profile_steps(engine: Engine, num_steps: int) -> list[Busy]:
    """Step an engine that has work for so long, and return what its GPU did, in order; nothing on a CPU."""
    if not torch.cuda.is_available():
        for _ in range(num_steps):
            engine.step()
        return []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(num_steps):
            engine.step()
        torch.cuda.synchronize()
    return sorted(
        Busy(event.time_range.start, event.time_range.end, event.name)
        for event in profiler.events()
        if event.device_type == DeviceType.CUDA
    )


def step_gap_us(busy: Sequence[Busy], num_steps: int) -> float | None:
    """Compute the GPU's median pause from one step to the next; None where steps cannot be separated.

    A step ends between two things that follow each other once a step, and there the pause is longest.
    """
    pauses: dict[tuple[str, str], list[float]] = {}
    for earlier, later in itertools.pairwise(busy):
        pauses.setdefault((earlier.name, later.name), []).append(max(0.0, later.start - earlier.end))
    once = [lengths for lengths in pauses.values() if abs(len(lengths) - num_steps) <= 1]
    return max(map(statistics.median, once), default=None)
