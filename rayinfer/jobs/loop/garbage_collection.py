"""Manual garbage collection: none between two steps but the loop's own, with measured pauses."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self


@dataclass(slots=True)
class Pauses:
    """Pauses of the job by garbage collection."""

    count: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0

    def record(self, seconds: float) -> None:
        """Add one."""
        self.count += 1
        self.total_s += seconds
        self.longest_s = max(self.longest_s, seconds)


class ManualGarbageCollector:
    """Block without automatic collections; what is there at its begin (models, modules) is not walked through again.

    Leaving the block enables them again, as they were. What the process had frozen before stays frozen.
    """

    def __init__(self, period_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.pauses = Pauses()
        self._period_s = period_s
        self._clock = clock
        self._latest = 0.0
        self._was_enabled = False
        self._had_frozen = False

    def __enter__(self) -> Self:
        self._was_enabled = gc.isenabled()
        self._had_frozen = gc.get_freeze_count() > 0
        gc.disable()
        self._collect()
        gc.freeze()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._had_frozen:
            gc.unfreeze()
        if self._was_enabled:
            gc.enable()

    def collect_periodic(self) -> None:
        """Collect when the period is over."""
        if self._clock() - self._latest >= self._period_s:
            self._collect()

    def _collect(self) -> None:
        started = self._clock()
        gc.collect()
        self._latest = self._clock()
        self.pauses.record(self._latest - started)
