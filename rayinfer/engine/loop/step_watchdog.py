"""Signs of an engine's life: when its loop last came round, and how long it may take to do so again."""

import contextlib
import time
from collections.abc import Callable, Iterator

MIN_LIMIT_S = 5.0
LIMIT_FACTOR = 10.0  # of the longest step of late, and of what the present one should take
FORGETTING = 0.99  # what is left of it after each step


class Pulse:
    """Written by the engine's thread, read by any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_beat = clock()
        self._longest_step_s = 0.0
        self._largest_step = (1, 0.0)  # tokens and seconds of the latest one that had as many as any before it
        self._num_tokens = 0  # of the present step
        self._is_excused = False

    @property
    def silent_s(self) -> float:
        """Seconds since the loop's last iteration; 0 while it is excused."""
        return 0.0 if self._is_excused else self._clock() - self._last_beat

    @property
    def limit_s(self) -> float:
        """Seconds of silence after which the step counts as stuck.

        A step with more tokens than any before may take as much longer: an engine that has only decoded so far, one
        token at a time, is not stuck when it reads its first long prompt.
        """
        num_tokens, seconds = self._largest_step
        predicted_s = seconds * max(1.0, self._num_tokens / num_tokens)
        return max(MIN_LIMIT_S, LIMIT_FACTOR * max(self._longest_step_s, predicted_s))

    def beat(self) -> None:
        """Record an iteration of the loop."""
        self._last_beat = self._clock()

    def planned(self, num_tokens: int) -> None:
        """Record how many tokens the present step computes."""
        self._num_tokens = num_tokens

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Measure one step."""
        started, self._num_tokens = self._clock(), 0
        yield
        seconds = self._clock() - started
        self._longest_step_s = max(seconds, FORGETTING * self._longest_step_s)
        if self._num_tokens >= self._largest_step[0]:
            self._largest_step = (self._num_tokens, seconds)
        self._num_tokens = 0

    @contextlib.contextmanager
    def excused(self) -> Iterator[None]:
        """Let the loop take as long as it wants: reading a checkpoint takes as long as at the start."""
        self._is_excused = True
        try:
            yield
        finally:
            self._last_beat, self._is_excused = self._clock(), False
