"""Requests whose grammars are compiled and whose images are encoded, before they are added."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from rayinfer.protocols import GenerationRequest


@dataclass(frozen=True, slots=True)
class _Compiling:
    request: GenerationRequest
    compiling: Future[Any]
    since: float

    def time_left_s(self, now: float) -> float | None:
        """Seconds until its time limit; None without one."""
        limit_s = self.request.timeout_s
        return None if limit_s is None else limit_s - (now - self.since)


class CompilingRequests:
    """Those of one engine, by id; what is computed for one that is dropped is cancelled where it has not begun."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_id: dict[str, _Compiling] = {}

    def add(self, request: GenerationRequest, compiling: Future[Any]) -> None:
        """Record that a request waits for a future."""
        self._by_id[request.request_id] = _Compiling(request, compiling, self._clock())

    def take(self, compiled: GenerationRequest) -> GenerationRequest | None:
        """Return a request, once it waits no more, with what is left of its time; None if it was dropped meanwhile."""
        found = self._by_id.get(compiled.request_id)
        if found is None or found.request is not compiled:
            return None
        del self._by_id[compiled.request_id]
        return replace(compiled, timeout_s=found.time_left_s(self._clock()))

    def drop(self, request_id: str) -> GenerationRequest | None:
        """Drop a request; None if it does not wait."""
        found = self._by_id.pop(request_id, None)
        if found is None:
            return None
        found.compiling.cancel()
        return found.request

    def overdue(self) -> list[str]:
        """Return the ids of those whose time is up."""
        now = self._clock()
        lefts = ((request_id, each.time_left_s(now)) for request_id, each in self._by_id.items())
        return [request_id for request_id, left_s in lefts if left_s is not None and left_s <= 0]
