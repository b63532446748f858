"""Time budget of a run: the workloads that still fit, and their repeats."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

# How far what works took may change what is expected of the others: one that found everything compiled says little.
FASTEST, SLOWEST = 0.2, 5.0


class OutOfTime(Exception):
    """A run's time is over, or too short for what was about to begin."""


class Deadline:
    """Countdown of `limit_s` seconds from its construction; `clock` is monotonic."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit_s = limit_s
        self._clock, self._started = clock, clock()

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since its construction."""
        return self._clock() - self._started

    @property
    def remaining_s(self) -> float:
        """Return the seconds left; below zero when it has passed."""
        return self.limit_s - self.elapsed_s

    def check(self) -> None:
        """Raise OutOfTime when it has passed."""
        if self.remaining_s <= 0:
            raise OutOfTime(f"the {self.limit_s:.0f} s of this run are over")


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Conservative time estimate of a workload."""

    open_s: float  # before its first run: an engine, compiling, recording, warming up
    run_s: float
    num_runs: int  # that are wanted
    run_name: str = "runs"

    @property
    def least_s(self) -> float:
        """Return the seconds for a single run."""
        return self.open_s + self.run_s


class Timetable:
    """Distribution of a run's time over workloads, in the order of their importance.

    A work begins when there is time for one run of it, and is repeated as long as those behind it keep time for one run
    each. What works took so far in relation to their estimates is expected of the others as well.
    """

    def __init__(self, deadline: Deadline, estimates: Mapping[str, Estimate]) -> None:
        self.deadline = deadline
        self._waiting = dict(estimates)
        self._estimated_s = self._taken_s = 0.0

    def begin(self, name: str) -> "WorkTime":
        """Begin a work; raises OutOfTime where one run of it does not fit any more."""
        estimate = self._waiting.pop(name)
        needed_s, left_s = self.pace * estimate.least_s, self.deadline.remaining_s
        if needed_s > left_s:
            raise OutOfTime(f"it needs about {needed_s:.0f} s, and {max(0.0, left_s):.0f} s were left")
        return WorkTime(self, estimate)

    @property
    def pace(self) -> float:
        """Return the time of works as a multiple of their estimates."""
        return min(SLOWEST, max(FASTEST, self._taken_s / self._estimated_s)) if self._estimated_s else 1.0

    def note(self, estimated_s: float, taken_s: float) -> None:
        """Record the time of a part of a work."""
        self._estimated_s += estimated_s
        self._taken_s += taken_s

    @property
    def spare_s(self) -> float:
        """Return the time left when every waiting work that fits has had a single run."""
        left_s = self.deadline.remaining_s
        for estimate in self._waiting.values():
            needed_s = self.pace * estimate.least_s
            left_s -= needed_s if needed_s <= left_s else 0.0
        return left_s


class WorkTime:
    """Time of one work, from its `begin` on."""

    def __init__(self, timetable: Timetable, estimate: Estimate) -> None:
        self.deadline = timetable.deadline
        self._timetable, self._estimate = timetable, estimate
        self._began_s = self.deadline.elapsed_s
        self._num_runs = 0

    def runs(self) -> Iterator[int]:
        """Yield the number of each run that fits, from 0 on; raises OutOfTime where not even the first one does."""
        timetable, estimate = self._timetable, self._estimate
        timetable.note(estimate.open_s, self.deadline.elapsed_s - self._began_s)
        if timetable.pace * estimate.run_s > self.deadline.remaining_s:
            raise OutOfTime("nothing is left of the time after what had to be prepared")
        longest_s = 0.0
        while self._num_runs < estimate.num_runs and (self._num_runs == 0 or longest_s <= timetable.spare_s):
            began_s = self.deadline.elapsed_s
            yield self._num_runs
            self._num_runs += 1
            taken_s = self.deadline.elapsed_s - began_s
            timetable.note(estimate.run_s, taken_s)
            longest_s = max(longest_s, taken_s)

    @property
    def shortfall(self) -> str:
        """Return how many of the wanted runs were made, where some did not fit; else the empty string."""
        wanted = self._estimate.num_runs
        return "" if self._num_runs in (0, wanted) else f"{self._num_runs} of {wanted} {self._estimate.run_name}"
