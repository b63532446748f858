"""Waiting for a condition that sets no event."""

import asyncio
import inspect
import time
from collections.abc import Callable

TIMEOUT_S = 60.0  # a machine that is shared with other work is slow
NUM_TURNS = 100  # of the event loop, before each further look takes time


def wait_until(condition: Callable[[], object], timeout_s: float = TIMEOUT_S, interval_s: float = 0.02) -> float:
    """Wait until a condition holds; returns the seconds that took, or fails with the condition's source."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < timeout_s, _failure(condition, timeout_s)
        time.sleep(interval_s)
    return time.monotonic() - started


async def until(condition: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
    """Let the event loop run until a condition holds; fails with the condition's source."""
    started, num_turns = time.monotonic(), 0
    while not condition():
        assert time.monotonic() - started < timeout_s, _failure(condition, timeout_s)
        await asyncio.sleep(0 if (num_turns := num_turns + 1) < NUM_TURNS else 0.002)


def _failure(condition: Callable[[], object], timeout_s: float) -> str:
    try:
        source = inspect.getsource(condition).strip()
    except (OSError, TypeError):
        source = repr(condition)
    return f"not within {timeout_s} s: {source}"
