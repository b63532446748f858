"""Deadline of a benchmark run: what begins after it is left out."""

import time
from collections.abc import Callable, Iterator


class OutOfTime(Exception):
    """The deadline of a run has passed."""


class Deadline:
    """Countdown of `limit_s` seconds from its construction; `clock` is monotonic."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit_s = limit_s
        self._clock, self._started_s = clock, clock()

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since its construction."""
        return self._clock() - self._started_s

    @property
    def remaining_s(self) -> float:
        """Return the seconds left; below zero when it has passed."""
        return self.limit_s - self.elapsed_s

    def check(self) -> None:
        """Raise OutOfTime when it has passed."""
        if self.remaining_s <= 0:
            raise OutOfTime(f"the {self.limit_s:.0f} s of this run are over")

    def runs(self, wanted: int) -> Iterator[int]:
        """Yield the number of each run from 0 on: the first always, repeats until the deadline."""
        for number in range(wanted):
            if number and self.remaining_s <= 0:
                return
            yield number
