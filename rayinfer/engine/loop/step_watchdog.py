"""Watchdog of an engine's loop: time since its last iteration, and how long a step may take."""

import contextlib
import time
from collections.abc import Callable, Iterator

from rayinfer.liveness import DEFAULT_LIMITS, LivenessLimits

DECAY = 0.99  # of the longest step, with each further one


class StepWatchdog:
    """Written by the engine's thread, read by any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, limits: LivenessLimits = DEFAULT_LIMITS) -> None:
        self._clock = clock
        self._min_limit_s = limits.min_step_limit_s
        self._factor = limits.step_limit_factor
        self._last_iteration = clock()
        self._longest_step_s = 0.0
        self._largest_step = (1, 0.0)  # tokens and seconds of the latest one that had as many as any before it
        self._num_tokens = 0  # of the current step
        self._is_suspended = False

    @property
    def stalled_s(self) -> float:
        """Seconds since the loop's last iteration; 0 while the watchdog is suspended."""
        return 0.0 if self._is_suspended else self._clock() - self._last_iteration

    @property
    def limit_s(self) -> float:
        """Seconds without an iteration after which the step counts as stuck.

        A step with more tokens than any before may take as much longer: an engine that has only decoded so far, one
        token at a time, is not stuck when it reads its first long prompt.
        """
        num_tokens, seconds = self._largest_step
        predicted_s = seconds * max(1.0, self._num_tokens / num_tokens)
        return max(self._min_limit_s, self._factor * max(self._longest_step_s, predicted_s))

    def record_iteration(self) -> None:
        """Record an iteration of the loop."""
        self._last_iteration = self._clock()

    def record_plan(self, num_tokens: int) -> None:
        """Record how many tokens the current step computes."""
        self._num_tokens = num_tokens

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Measure one step."""
        started, self._num_tokens = self._clock(), 0
        yield
        seconds = self._clock() - started
        self._longest_step_s = max(seconds, DECAY * self._longest_step_s)
        if self._num_tokens >= self._largest_step[0]:
            self._largest_step = (self._num_tokens, seconds)
        self._num_tokens = 0

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Set no limit meanwhile: reading a checkpoint takes as long as at the start."""
        self._is_suspended = True
        try:
            yield
        finally:
            self._last_iteration, self._is_suspended = self._clock(), False
