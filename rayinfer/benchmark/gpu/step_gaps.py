"""GPU idle time between two decoding steps."""

import itertools
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.autograd.profiler_util import DeviceType  # type: ignore[attr-defined]

from rayinfer.engine.loop.engine import Engine


class Activity(NamedTuple):
    """One kernel or copy on the GPU, in microseconds."""

    start: float
    end: float
    name: str


def profile_steps(engine: Engine, num_steps: int) -> list[Activity]:
    """Run steps of a activities engine; returns the GPU's activities in order, none on a CPU."""
    if not torch.cuda.is_available():
        for _ in range(num_steps):
            engine.step()
        return []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(num_steps):
            engine.step()
        torch.cuda.synchronize()
    return sorted(
        Activity(event.time_range.start, event.time_range.end, event.name)
        for event in profiler.events()
        if event.device_type == DeviceType.CUDA
    )


def step_gap_us(activities: Sequence[Activity], num_steps: int) -> float | None:
    """Compute the GPU's median pause from one step to the next; None where steps cannot be separated.

    A step ends between two activities that follow each other once a step, with the longest pause.
    """
    pauses: dict[tuple[str, str], list[float]] = {}
    for earlier, later in itertools.pairwise(activities):
        pauses.setdefault((earlier.name, later.name), []).append(max(0.0, later.start - earlier.end))
    once = [lengths for lengths in pauses.values() if abs(len(lengths) - num_steps) <= 1]
    return max(map(statistics.median, once), default=None)
