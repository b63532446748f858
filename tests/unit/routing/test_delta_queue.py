import asyncio

import pytest

from rayinfer.errors import EngineDead
from rayinfer.outputs import TokenDelta
from rayinfer.routing.delta_queue import DeltaQueue

PATIENCE_S = 10.0


def delta(position=0, *, choice=0):
    return TokenDelta(f"a/{choice}", position, [position])


@pytest.mark.parametrize("timeout_s", [None, PATIENCE_S])
async def test_a_reader_that_waits_is_woken_by_the_first_delta(timeout_s):
    queue = DeltaQueue()
    reading = asyncio.create_task(queue.take(timeout_s))
    await asyncio.sleep(0)
    queue.put(delta())
    queue.put(delta(choice=1))
    assert await asyncio.wait_for(reading, PATIENCE_S) == [delta(), delta(choice=1)]


async def test_a_reader_that_has_waited_long_enough_loses_nothing_that_comes_later():
    queue = DeltaQueue()
    with pytest.raises(TimeoutError):
        await queue.take(0.001)
    queue.put(delta())
    assert await queue.take(0.001) == [delta()]


async def test_a_reader_that_was_cancelled_leaves_what_had_just_come():
    queue = DeltaQueue()
    reading = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    queue.put(delta())
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await queue.take(0.001) == [delta()]


async def test_the_failure_comes_after_everything_before_it():
    queue = DeltaQueue()
    reading = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    queue.put(delta())
    queue.fail(EngineDead("gone"))
    assert await reading == [delta()]
    for _ in range(2):
        with pytest.raises(EngineDead):
            await queue.take()


async def test_a_failure_wakes_a_reader():
    queue = DeltaQueue()
    reading = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    queue.fail(EngineDead("gone"))
    with pytest.raises(EngineDead):
        await asyncio.wait_for(reading, PATIENCE_S)
