"""Time to first token against the objective, as counts that can be added up over routers."""

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

WINDOW_S = 15.0  # how long a first token counts after it was sent


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


class _WaitingRequest(NamedTuple):
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
        self._waiting: dict[int, _WaitingRequest] = {}  # in order of arrival
        self._next_key = 0
        self._waiting_tokens = 0
        self._recent: deque[tuple[float, bool]] = deque()  # when, and whether late
        self._num_late = 0  # of those

    def add_request(self, num_tokens: int) -> int:
        """Record a request with a prompt of so many tokens; returns its key."""
        self._next_key += 1
        self._waiting[self._next_key] = _WaitingRequest(self._clock(), num_tokens)
        self._waiting_tokens += num_tokens
        return self._next_key

    def record_first_token(self, key: int) -> None:
        """Record the request's first token."""
        self._note(self._clock(), self._take(key))

    def remove_request(self, key: int) -> None:
        """Record that the request ended without a token, which counts only if it had waited too long."""
        now, request = self._clock(), self._take(key)
        if now - request.since_s > self._objective_s:
            self._note(now, request)

    def counts(self) -> FirstTokenCounts:
        """Return the present counts."""
        now = self._clock()
        self._forget(now)
        num_late_waiting = 0
        for request in self._waiting.values():
            if now - request.since_s <= self._objective_s:
                break  # the rest arrived later
            num_late_waiting += 1
        return FirstTokenCounts(
            num_waiting=len(self._waiting),
            waiting_tokens=self._waiting_tokens,
            num_started=len(self._recent),
            num_late=self._num_late + num_late_waiting,
        )

    def _take(self, key: int) -> _WaitingRequest:
        request = self._waiting.pop(key)
        self._waiting_tokens -= request.num_tokens
        return request

    def _note(self, now: float, request: _WaitingRequest) -> None:
        is_late = now - request.since_s > self._objective_s
        self._recent.append((now, is_late))
        self._num_late += is_late
        self._forget(now)

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0][0] < now - self._window_s:
            self._num_late -= self._recent.popleft()[1]
