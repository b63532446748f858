"""Signs of an engine's life: when its loop last came round, and how long it may take to do so again."""

import contextlib
import time
from collections.abc import Callable, Iterator

MIN_LIMIT_S = 5.0
LIMIT_FACTOR = 10.0  # of the longest step of late
FORGETTING = 0.99  # what is left of it after each step


class Pulse:
    """Written by the engine's thread, read by any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_beat = clock()
        self._longest_step_s = 0.0
        self._is_excused = False

    @property
    def silent_s(self) -> float:
        """How long ago the loop last came round; 0 while it is excused."""
        return 0.0 if self._is_excused else self._clock() - self._last_beat

    @property
    def limit_s(self) -> float:
        """How long a silence means that the step will not end any more."""
        return max(MIN_LIMIT_S, LIMIT_FACTOR * self._longest_step_s)

    def beat(self) -> None:
        """Say that the loop comes round."""
        self._last_beat = self._clock()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Measure one step."""
        started = self._clock()
        yield
        self._longest_step_s = max(self._clock() - started, FORGETTING * self._longest_step_s)

    @contextlib.contextmanager
    def excused(self) -> Iterator[None]:
        """Let the loop take as long as it wants: reading a checkpoint takes as long as at the start."""
        self._is_excused = True
        try:
            yield
        finally:
            self._last_beat, self._is_excused = self._clock(), False
