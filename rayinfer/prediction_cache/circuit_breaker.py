"""Circuit breaker in front of a service that may fail: after several failures it is not asked for a while."""

from collections import deque
from collections.abc import Callable

from rayinfer.metrics.prediction_cache_counts import BreakerState

MAX_FAILURES = 5
WINDOW_S = 10.0  # in which they count
OPEN_S = 5.0  # until one call is let through as a probe


class CircuitBreaker:
    """Each call that `allows` has let through ends with `record_success` or `record_failure`."""

    def __init__(self, clock: Callable[[], float], on_change: Callable[[BreakerState], None]) -> None:
        self.state: BreakerState = "closed"
        self._clock = clock
        self._on_change = on_change
        self._failures: deque[float] = deque(maxlen=MAX_FAILURES)
        self._opened_s = 0.0
        on_change(self.state)

    def allows(self) -> bool:
        """Return whether a call may be made now; half-open, one at a time may."""
        if self.state == "open" and self._clock() - self._opened_s >= OPEN_S:
            self._change("half_open")
            return True
        return self.state == "closed"

    def record_success(self) -> None:
        """Close it; failures of calls that began before are forgotten."""
        if self.state == "half_open":
            self._failures.clear()
            self._change("closed")

    def record_failure(self) -> None:
        """Open it after a failed probe, or after too many failures in the window."""
        now_s = self._clock()
        self._failures.append(now_s)
        is_window_full = len(self._failures) == MAX_FAILURES and now_s - self._failures[0] <= WINDOW_S
        if self.state == "half_open" or (self.state == "closed" and is_window_full):
            self._opened_s = now_s
            self._change("open")

    def _change(self, state: BreakerState) -> None:
        self.state = state
        self._on_change(state)
