"""How many requests may wait for their first token, and when a refused one should come back."""

import math
import time
from collections.abc import Callable

from rayinfer.errors import QueueFull
from rayinfer.routing.limits import RouterLimits

MIN_RETRY_AFTER_S = 1.0
MAX_RETRY_AFTER_S = 60.0
SMOOTHING = 0.2  # weight of the newest gap between two first tokens


class Admission:
    """Counts the requests that wait for their first token and refuses those above the bound."""

    def __init__(self, limits: RouterLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._num_waiting = 0
        self._seconds_per_start: float | None = None  # smoothed gap between first tokens while requests wait
        self._last_start: float | None = None

    @property
    def num_waiting(self) -> int:
        """Requests that were admitted and have no token yet."""
        return self._num_waiting

    def admit(self) -> "Ticket":
        """Take a place in the queue; raises QueueFull with the time after which a place should be free."""
        if self._num_waiting >= self.limits.max_waiting_requests:
            raise QueueFull(
                f"{self._num_waiting} requests are waiting already, the limit is {self.limits.max_waiting_requests}",
                self.retry_after_s(),
            )
        if self._num_waiting == 0:
            self._last_start = None  # the idle time before says nothing about how fast a queue moves
        self._num_waiting += 1
        return Ticket(self)

    def retry_after_s(self) -> float:
        """Estimate in whole seconds how long half of those who wait need to get started."""
        pace = self._seconds_per_start if self._seconds_per_start is not None else 0.0
        estimate = math.ceil(pace * self._num_waiting / 2)
        return min(max(float(estimate), MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)

    def _started(self) -> None:
        now = self._clock()
        if self._last_start is not None:
            gap = now - self._last_start
            before = self._seconds_per_start
            self._seconds_per_start = gap if before is None else before + SMOOTHING * (gap - before)
        self._last_start = now
        self._num_waiting -= 1

    def _left(self) -> None:
        self._num_waiting -= 1


class Ticket:
    """One request's place among those who wait; given back once, whichever way it ends."""

    def __init__(self, admission: Admission) -> None:
        self._admission: Admission | None = admission

    def start(self) -> None:
        """The first token came."""
        if self._admission is not None:
            self._admission._started()
            self._admission = None

    def leave(self) -> None:
        """The request ended; does nothing when it had started before."""
        if self._admission is not None:
            self._admission._left()
            self._admission = None
