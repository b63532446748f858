"""Adapters in the memories of a model's engines, as these report them, or as requests are about to bring them there."""

import math
import time
from collections.abc import Callable, Sequence

EXPECT_S = 10.0  # how long an adapter of a request that was sent to an engine counts as in memory there


class AdapterResidency:
    """Adapters in memory by engine; wrong where an engine has evicted one since its last report, which costs time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reported: dict[str, frozenset[str]] = {}
        self._expected: dict[str, dict[str, float]] = {}  # until when

    def update(self, engine: str, digests: Sequence[str]) -> None:
        """Record an engine's report."""
        if digests or engine in self._reported:
            self._reported[engine] = frozenset(digests)

    def expect(self, engine: str, digest: str) -> None:
        """Record that a request with this adapter is sent to the engine."""
        now, expected = self._clock(), self._expected.setdefault(engine, {})
        for other in [other for other, until in expected.items() if until < now]:
            del expected[other]
        expected[digest] = now + EXPECT_S

    def has(self, engine: str, digest: str) -> bool:
        """Return whether the engine has this adapter in memory, or soon will."""
        if digest in self._reported.get(engine, ()):
            return True
        return self._expected.get(engine, {}).get(digest, -math.inf) >= self._clock()

    def remove_engine(self, engine: str) -> None:
        """Forget an engine that is gone."""
        self._reported.pop(engine, None)
        self._expected.pop(engine, None)
