"""Retry budget of a stream, and the quarantine of streams that may crash engines."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from rayinfer.errors import NotReady
from rayinfer.routing.engine_set import EngineSet

SUSPICIOUS_AFTER = 2  # engines lost in a row without a token
MAX_FRUITLESS = 3
MAX_CRASHED = 16  # engines that may be lost during one stream, whatever their progress


@dataclass(kw_only=True, slots=True)
class RetryBudget:
    """Counts the engines that a stream has lost.

    A stream that gained a token on its engine has shown that it can be computed. One that lost two engines in a row
    without a token may have crashed them: it has to pass the quarantine. If the next engine is lost as well, the
    stream is rejected; so is one that has lost sixteen engines.
    """

    num_lost: int = 0
    num_begun: int = 0  # attempts; more than `num_lost` where an engine was gone before it had the stream
    num_crashed: int = 0  # lost engines that were not drained
    num_losses_without_progress: int = 0  # losses in a row; the first may have come after some tokens
    num_tokens_before: int = 0  # the stream's tokens when the present attempt began
    has_queued: bool = False  # whether the first attempt had to wait in the dispatch queue

    @property
    def may_crash_engines(self) -> bool:
        """Whether the stream may have crashed its engines."""
        return self.num_losses_without_progress >= SUSPICIOUS_AFTER

    @property
    def is_exhausted(self) -> bool:
        """Whether the stream may not be retried."""
        return self.num_losses_without_progress >= MAX_FRUITLESS or self.num_crashed >= MAX_CRASHED

    def begin(self) -> int:
        """Number the next attempt, from 0."""
        self.num_begun += 1
        return self.num_begun - 1

    def lost(self, num_tokens: int) -> None:
        """Record a lost engine, when the stream had so many tokens."""
        self.num_crashed += 1
        self.num_losses_without_progress = 1 if self.made_progress(num_tokens) else self.num_losses_without_progress + 1
        self._record(num_tokens)

    def migrated(self, num_tokens: int) -> None:
        """Record a drained engine, which is no sign against the stream, when it had so many tokens."""
        if self.made_progress(num_tokens):
            self.num_losses_without_progress = 0
        self._record(num_tokens)

    def handed_over(self, num_tokens: int) -> None:
        """Record that another engine continues the stream, which has so many tokens, though none was lost."""
        self.num_losses_without_progress = 0
        self.num_tokens_before = num_tokens

    def made_progress(self, num_tokens: int) -> bool:
        """Whether the present engine has computed any of so many tokens."""
        return num_tokens > self.num_tokens_before

    def _record(self, num_tokens: int) -> None:
        self.num_lost += 1
        self.num_tokens_before = num_tokens


class Quarantine:
    """Lets one suspicious stream run at a time, so that the one at fault is distinguished from the others."""

    def __init__(self, engines: EngineSet) -> None:
        self._engines = engines
        self._lock = asyncio.Lock()

    def permit(self) -> "QuarantinePermit":
        """Make a stream's permit, not acquired yet."""
        return QuarantinePermit(self._engines, self._lock)


class QuarantinePermit:
    """One stream's permit to run although it is suspicious; at most one is held at any time."""

    __slots__ = ("_engines", "_is_held", "_lock")

    def __init__(self, engines: EngineSet, lock: asyncio.Lock) -> None:
        self._engines = engines
        self._lock = lock
        self._is_held = False

    async def acquire(self, time_left_s: Callable[[], float]) -> None:
        """Wait for an engine and for the permit; waiting for an engine blocks no other stream.

        Raises NotReady when either takes longer than `time_left_s`, called anew whenever an engine has come.
        """
        while True:
            await self._engines.wait_for_any(time_left_s())
            try:
                async with asyncio.timeout(max(0.0, time_left_s())):
                    await self._lock.acquire()
            except TimeoutError:
                raise NotReady("other requests that lost their engines are still being tried one by one") from None
            self._is_held = True
            if self._engines.available():
                return
            self.release()

    def release(self) -> None:
        """Let the next suspicious stream run; does nothing where the permit is not held."""
        if self._is_held:
            self._is_held = False
            self._lock.release()
