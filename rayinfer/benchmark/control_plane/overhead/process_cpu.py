"""Processor time of processes, read from /proc, and its share per token of a load."""

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

CLOCK_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")

CpuSeconds = Mapping[int, float]  # by process id


def read_cpu_seconds(pids: Iterable[int]) -> CpuSeconds:
    """Read the time of each process, in user code and in the kernel; those that are gone are left out."""
    seconds = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            seconds[pid] = parse_cpu_seconds(Path(f"/proc/{pid}/stat").read_text())
    return seconds


def parse_cpu_seconds(stat: str) -> float:
    """Read utime and stime, fields 14 and 15 of a line of /proc/PID/stat."""
    # The command's name stands in parentheses and may hold anything, parentheses and spaces too.
    fields = stat[stat.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) * CLOCK_TICK_S


def cpu_share(before: CpuSeconds, after: CpuSeconds, seconds: float) -> dict[int, float]:
    """Compute the share of one core of each process that was there at both times."""
    return {pid: (after[pid] - before[pid]) / seconds for pid in before.keys() & after.keys()}


def us_per_token(pids: Iterable[int], loaded: Mapping[int, float], idle: Mapping[int, float], tok_s: float) -> float:
    """Divide what these processes took under load beyond what they take anyway, in cores, by the tokens a second."""
    extra = sum(loaded.get(pid, 0.0) - idle.get(pid, 0.0) for pid in pids)
    return round(1e6 * extra / tok_s, 2)
