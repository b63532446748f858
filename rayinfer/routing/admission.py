"""Admission control: bounds on waiting requests, in all and by tenant, and Retry-After of rejections."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from rayinfer.errors import QueueFull, StartingQueueFull
from rayinfer.routing.first_tokens import FirstTokens
from rayinfer.routing.limits import RouterLimits

MIN_RETRY_AFTER_S = 1.0
MAX_RETRY_AFTER_S = 60.0
SMOOTHING = 0.2  # weight of the newest gap between two first tokens
STARTING_RETRY_AFTER_S = 10.0  # while the first engine starts, for an unknown time
CACHES_THAT_MAY_WAIT = 16  # tokens that may wait, relative to what the engines' caches hold


def queue_factor(max_engines: int, *, has_engine: bool) -> int:
    """Return the factor on a queue's limits: 1, or the maximum number of engines while there is none."""
    return 1 if has_engine else max_engines


@dataclass(slots=True)
class _Waiting:
    num_requests: int = 0
    num_tokens: int = 0

    def add(self, num_requests: int, num_tokens: int) -> None:
        self.num_requests += num_requests
        self.num_tokens += num_tokens


class AdmissionControl:
    """Counts the requests that wait for their first token, and their tokens, and rejects those above the bounds.

    With autoscaling, `first_tokens` records every request too. While such a model has no engine (`is_starting`), the
    bounds are those of `max_engines` engines.
    """

    def __init__(
        self,
        limits: RouterLimits,
        clock: Callable[[], float] = time.monotonic,
        first_tokens: FirstTokens | None = None,
        max_engines: int = 1,
        is_starting: Callable[[], bool] = lambda: False,
    ) -> None:
        self.limits = limits
        self.first_tokens = first_tokens
        self._clock = clock
        self._max_engines = max_engines
        self._is_starting = is_starting
        self._all = _Waiting()
        self._by_tenant: dict[str, _Waiting] = {}
        self._seconds_per_start: float | None = None  # smoothed gap between first tokens while requests wait
        self._last_start: float | None = None

    @property
    def num_waiting(self) -> int:
        """Requests that were admitted and have no token yet."""
        return self._all.num_requests

    def overload(self) -> QueueFull | None:
        """Return why no request would be admitted, whatever its size; None below the bounds."""
        return self._too_many(self._all, self._max_requests(), "")

    def admit(
        self, tenant: str = "", num_tokens: int = 0, num_cache_tokens: int = 0, num_prompt_tokens: int = 0
    ) -> "AdmissionSlot":
        """Admit a request; raises QueueFull with the time after which a retry should succeed.

        A request of any size may wait alone. `num_cache_tokens` is what all engines' caches hold; `num_tokens` includes
        the expected outputs, `num_prompt_tokens` does not.
        """
        max_tokens = (self.limits.max_waiting_tokens or 0) * self._factor() or CACHES_THAT_MAY_WAIT * num_cache_tokens
        self._check(self._all, num_tokens, self._max_requests(), max_tokens or None, "")
        of_tenant, own = self._by_tenant.get(tenant, _Waiting()), self.limits.of_tenant(tenant)
        self._check(of_tenant, num_tokens, own.max_waiting_requests, own.max_waiting_tokens, " of this tenant")
        if self._all.num_requests == 0:
            self._last_start = None  # the idle time before is no measure of how fast a queue moves
        self._by_tenant[tenant] = of_tenant
        for waiting in (self._all, of_tenant):
            waiting.add(1, num_tokens)
        key = None if self.first_tokens is None else self.first_tokens.add_request(num_prompt_tokens)
        return AdmissionSlot(self, tenant, num_tokens, key)

    def retry_after_s(self) -> float:
        """Estimate in whole seconds how long half of the waiting requests need to start."""
        gap_s = self._seconds_per_start if self._seconds_per_start is not None else 0.0
        estimate = math.ceil(gap_s * self._all.num_requests / 2)
        return min(max(float(estimate), MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)

    def _factor(self) -> int:
        """Return the factor on the limits."""
        return queue_factor(self._max_engines, has_engine=not self._is_starting())

    def _max_requests(self) -> int:
        return self.limits.max_waiting_requests * self._factor()

    def _refusal(self, message: str) -> QueueFull:
        if self._is_starting():
            return StartingQueueFull(f"the model's first engine starts: {message}", STARTING_RETRY_AFTER_S)
        return QueueFull(message, self.retry_after_s())

    def _check(
        self, waiting: _Waiting, num_tokens: int, max_requests: int | None, max_tokens: int | None, scope: str
    ) -> None:
        if (refusal := self._too_many(waiting, max_requests, scope)) is not None:
            raise refusal
        if max_tokens is not None and waiting.num_tokens and waiting.num_tokens + num_tokens > max_tokens:
            raise self._refusal(
                f"requests{scope} of {waiting.num_tokens} tokens are waiting already and this one has {num_tokens}, "
                f"the limit is {max_tokens}"
            )

    def _too_many(self, waiting: _Waiting, max_requests: int | None, scope: str) -> QueueFull | None:
        if max_requests is None or waiting.num_requests < max_requests:
            return None
        return self._refusal(f"{waiting.num_requests} requests{scope} are waiting already, the limit is {max_requests}")

    def _started(self, tenant: str, num_tokens: int, key: int | None) -> None:
        if key is not None and self.first_tokens is not None:
            self.first_tokens.record_first_token(key)
        now = self._clock()
        if self._last_start is not None:
            gap = now - self._last_start
            before = self._seconds_per_start
            self._seconds_per_start = gap if before is None else before + SMOOTHING * (gap - before)
        self._last_start = now
        self._remove(tenant, num_tokens)

    def _released(self, tenant: str, num_tokens: int, key: int | None) -> None:
        if key is not None and self.first_tokens is not None:
            self.first_tokens.remove_request(key)
        self._remove(tenant, num_tokens)

    def _remove(self, tenant: str, num_tokens: int) -> None:
        for waiting in (self._all, self._by_tenant[tenant]):
            waiting.add(-1, -num_tokens)
        if not self._by_tenant[tenant].num_requests:  # clients may invent names
            del self._by_tenant[tenant]


class AdmissionSlot:
    """One request's admission slot; freed once, whichever way the request ends.

    A request that is admitted and never begun, as its client was gone, frees the slot when it is garbage-collected.
    """

    def __init__(self, admission: AdmissionControl, tenant: str, num_tokens: int, key: int | None) -> None:
        self._admission: AdmissionControl | None = admission
        self._arguments = (tenant, num_tokens, key)

    def start(self) -> None:
        """Record the first token."""
        if self._admission is not None:
            self._admission._started(*self._arguments)
            self._admission = None

    def release(self) -> None:
        """Free the slot of a request that ended; does nothing after `start`."""
        if self._admission is not None:
            self._admission._released(*self._arguments)
            self._admission = None

    __del__ = release
