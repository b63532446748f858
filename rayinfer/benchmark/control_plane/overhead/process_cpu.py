"""Processor time of processes, and its part for each token of a load."""

import contextlib
from collections.abc import Iterable, Mapping

import psutil

CpuSeconds = Mapping[int, float]  # by process id


def read_cpu_seconds(pids: Iterable[int]) -> CpuSeconds:
    """Read the time of each process, in user code and in the kernel; those that have ended are left out."""
    seconds = {}
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            seconds[pid] = times.user + times.system
    return seconds


def cpu_share(before: CpuSeconds, after: CpuSeconds, seconds: float) -> dict[int, float]:
    """Compute the share of one core of each process that was there at both times."""
    return {pid: (after[pid] - before[pid]) / seconds for pid in before.keys() & after.keys()}


def us_per_token(pids: Iterable[int], loaded: Mapping[int, float], idle: Mapping[int, float], tok_s: float) -> float:
    """Divide what these processes took under load beyond what they take anyway, in cores, by the tokens a second."""
    extra = sum(loaded.get(pid, 0.0) - idle.get(pid, 0.0) for pid in pids)
    return round(1e6 * extra / tok_s, 2)
