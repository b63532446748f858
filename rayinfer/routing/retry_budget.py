"""Dispatch attempts of one stream: its lost engines, and the quarantine of streams that may crash engines."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from rayinfer.errors import NotReady

SUSPICIOUS_AFTER = 2  # engines lost in a row before they gave a token
MAX_FRUITLESS = 3
MAX_ENDED = 16  # engines that may end under one stream, whatever it gained from each


@dataclass(kw_only=True, slots=True)
class RetryBudget:
    """Counts the engines that a stream has lost.

    A stream that gained a token on its engine has shown that it can be computed. One that lost two engines in a row
    before it gained any may be what ended them: it has to pass the quarantine. If the next engine ends as well, the
    stream is refused; so is one under which sixteen have ended.
    """

    num_lost: int = 0
    num_begun: int = 0  # more than the lost ones where an engine was gone before it took the stream
    num_ended: int = 0  # of the lost ones, those that did not just leave
    num_fruitless: int = 0  # losses in a row; the first may have come after some tokens
    num_tokens_before: int = 0  # the stream's tokens when the present attempt began
    has_queued: bool = False  # whether the first attempt had to wait for its turn

    @property
    def is_suspicious(self) -> bool:
        """Whether the stream may be what ended its engines."""
        return self.num_fruitless >= SUSPICIOUS_AFTER

    @property
    def is_exhausted(self) -> bool:
        """Whether no further engine should be risked."""
        return self.num_fruitless >= MAX_FRUITLESS or self.num_ended >= MAX_ENDED

    def begin(self) -> int:
        """Number the next attempt, from 0."""
        self.num_begun += 1
        return self.num_begun - 1

    def lost(self, num_tokens: int) -> None:
        """Note that the engine is gone, when the stream had so many tokens."""
        self.num_ended += 1
        self.num_fruitless = 1 if self.made_progress(num_tokens) else self.num_fruitless + 1
        self._note(num_tokens)

    def migrated(self, num_tokens: int) -> None:
        """Note that the stream goes elsewhere through no fault of its own, when it had so many tokens."""
        if self.made_progress(num_tokens):
            self.num_fruitless = 0
        self._note(num_tokens)

    def made_progress(self, num_tokens: int) -> bool:
        """Whether the present engine has given any of so many tokens."""
        return num_tokens > self.num_tokens_before

    def _note(self, num_tokens: int) -> None:
        self.num_lost += 1
        self.num_tokens_before = num_tokens


class Quarantine:
    """Runs suspicious streams one at a time, so that the one at fault is distinguished from the others.

    `has_engine` is whether there is an engine to be tried on, and `wait_for_engine` waits some seconds for one, or
    raises NotReady.
    """

    def __init__(self, has_engine: Callable[[], bool], wait_for_engine: Callable[[float], Awaitable[None]]) -> None:
        self._has_engine = has_engine
        self._wait_for_engine = wait_for_engine
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def place(self, patience_s: Callable[[], float]) -> AsyncIterator[None]:
        """Be the only suspicious stream while the block lasts, from a moment on when there is an engine to be tried on.

        Waiting for an engine blocks no other stream. Raises NotReady when no engine, or no turn, comes within
        the time of `patience_s`, called anew whenever an engine has come.
        """
        while True:
            await self._wait_for_engine(patience_s())
            try:
                async with asyncio.timeout(max(0.0, patience_s())):
                    await self._lock.acquire()
            except TimeoutError:
                raise NotReady("other requests that lost their engines are still being tried one by one") from None
            if self._has_engine():
                break
            self._lock.release()
        try:
            yield
        finally:
            self._lock.release()
