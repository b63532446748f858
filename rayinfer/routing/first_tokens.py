"""Time to first token against the objective, as counts that can be added up over routers."""

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

WINDOW_S = 15.0  # how long a first token counts after it came


class FirstTokenCounts(NamedTuple):
    """Requests without a first token at one moment, and late ones in the recent past."""

    num_waiting: int = 0  # requests without a first token
    waiting_tokens: int = 0  # of their prompts
    num_started: int = 0  # requests with a recent first token, or that recently ended late without one
    num_late: int = 0  # of both, those that took longer than the objective, or have waited longer so far

    def plus(self, other: "FirstTokenCounts") -> "FirstTokenCounts":
        """Add the counts of another router."""
        return FirstTokenCounts(*(mine + its for mine, its in zip(self, other, strict=True)))


NOTHING = FirstTokenCounts()


class _Expected(NamedTuple):
    since_s: float
    num_tokens: int


class FirstTokens:
    """Counter of the requests without a token, and of recent ones whose first token was late."""

    def __init__(
        self, objective_s: float, *, window_s: float = WINDOW_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._objective_s = objective_s
        self._window_s = window_s
        self._clock = clock
        self._expected: dict[int, _Expected] = {}  # in order of arrival
        self._next_key = 0
        self._waiting_tokens = 0
        self._came: deque[tuple[float, bool]] = deque()  # when, and whether late
        self._num_late = 0  # of those

    def expect(self, num_tokens: int) -> int:
        """Record a request with a prompt of so many tokens; returns its key."""
        self._next_key += 1
        self._expected[self._next_key] = _Expected(self._clock(), num_tokens)
        self._waiting_tokens += num_tokens
        return self._next_key

    def came(self, key: int) -> None:
        """Record the request's first token."""
        self._note(self._clock(), self._take(key))

    def left(self, key: int) -> None:
        """Record that the request ended without a token, which counts only if it had waited too long."""
        now, expected = self._clock(), self._take(key)
        if now - expected.since_s > self._objective_s:
            self._note(now, expected)

    def counts(self) -> FirstTokenCounts:
        """Return the present counts."""
        now = self._clock()
        self._forget(now)
        num_late_waiting = 0
        for expected in self._expected.values():
            if now - expected.since_s <= self._objective_s:
                break  # the rest arrived later
            num_late_waiting += 1
        return FirstTokenCounts(
            num_waiting=len(self._expected),
            waiting_tokens=self._waiting_tokens,
            num_started=len(self._came),
            num_late=self._num_late + num_late_waiting,
        )

    def _take(self, key: int) -> _Expected:
        expected = self._expected.pop(key)
        self._waiting_tokens -= expected.num_tokens
        return expected

    def _note(self, now: float, expected: _Expected) -> None:
        is_late = now - expected.since_s > self._objective_s
        self._came.append((now, is_late))
        self._num_late += is_late
        self._forget(now)

    def _forget(self, now: float) -> None:
        while self._came and self._came[0][0] < now - self._window_s:
            self._num_late -= self._came.popleft()[1]
