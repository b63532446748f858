"""Time that tests set: a clock, and an event loop that jumps to the next timer instead of waiting for it."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class FakeClock:
    """Seconds that pass when the test says so."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop in which only sleeping takes time."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_JumpingSelector(self._advance))

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def _advance(self, seconds: float) -> None:
        self._now += seconds


class _JumpingSelector(selectors.SelectSelector):
    """A selector that reports the time it should have waited instead of waiting."""

    def __init__(self, on_wait: Any) -> None:
        super().__init__()
        self._on_wait = on_wait

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("all tasks wait, and no timer is set")
        if not ready and timeout:
            self._on_wait(timeout)
        return ready


def run_in_virtual_time(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(coroutine)
