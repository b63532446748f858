"""Wait for one future, with a timeout."""

import asyncio
from typing import TypeVar

T = TypeVar("T")


async def wait_within(future: asyncio.Future[T], timeout_s: float | None) -> T:
    """Wait for a future's result; after the timeout the future fails with TimeoutError.

    Runs once per token and stream: `asyncio.timeout` takes three times as long.
    """
    if timeout_s is None:
        return await future
    timer = asyncio.get_running_loop().call_later(timeout_s, _expire, future)
    try:
        return await future
    finally:
        timer.cancel()


def _expire(future: asyncio.Future[T]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())
