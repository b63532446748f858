import asyncio

import pytest

from rayinfer.errors import EngineDead
from rayinfer.outputs import TokenDelta
from rayinfer.routing.delta_queue import DeltaQueue

TIMEOUT_S = 10.0


def delta(position=0, *, choice=0):
    return TokenDelta(f"a/{choice}", position, [position])


@pytest.mark.parametrize("timeout_s", [None, TIMEOUT_S])
async def test_a_reader_that_waits_is_woken_by_the_first_delta(timeout_s):
    queue = DeltaQueue()
    reading = asyncio.create_task(queue.take(timeout_s))
    await asyncio.sleep(0)
    queue.put(delta())
    queue.put(delta(choice=1))
    assert await asyncio.wait_for(reading, TIMEOUT_S) == [delta(), delta(choice=1)]


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
        await asyncio.wait_for(reading, TIMEOUT_S)


def tokens(start, count, *, choice=0, **fields):
    return TokenDelta(f"a/{choice}", start, list(range(start, start + count)), **fields)


async def take(queue):
    return await asyncio.wait_for(queue.take(), TIMEOUT_S)


async def is_held_up(queue):
    reading = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    is_done = reading.done()
    reading.cancel()
    return not is_done


async def test_chunks_of_an_interval_are_held_up_until_they_are_full_but_never_the_first():
    queue = DeltaQueue(interval=3)
    queue.put(tokens(0, 1))
    assert await take(queue) == [tokens(0, 1)]
    queue.put(tokens(1, 2))
    assert await is_held_up(queue)
    queue.put(tokens(3, 1))
    assert await take(queue) == [tokens(1, 3)]
    assert await is_held_up(queue)


@pytest.mark.parametrize("news", [tokens(0, 1, choice=1), tokens(2, 0, finish_reason="stop"), tokens(2, 2)])
async def test_other_first_tokens_ends_and_full_chunks_take_what_is_there_with_them(news):
    queue = DeltaQueue(interval=3)
    queue.put(tokens(0, 1))
    await take(queue)
    queue.put(tokens(1, 1))
    queue.put(news)
    taken = await take(queue)
    assert sum(len(delta.token_ids) for delta in taken) == 1 + len(news.token_ids)


async def test_a_stream_that_goes_on_elsewhere_is_not_held_up_at_first():
    queue = DeltaQueue(interval=3)
    queue.put(tokens(7, 1))
    assert await take(queue) == [tokens(7, 1)]


async def test_an_overdue_request_returns_what_is_there():
    queue = DeltaQueue(interval=3)
    queue.put(tokens(0, 1))
    await take(queue)
    queue.put(tokens(1, 1))
    assert await queue.take(0.001) == [tokens(1, 1)]
    with pytest.raises(TimeoutError):
        await queue.take(0.001)


async def test_a_failure_holds_nothing_up():
    queue = DeltaQueue(interval=3)
    queue.put(tokens(0, 1))
    await take(queue)
    queue.put(tokens(1, 1))
    queue.fail(EngineDead("gone"))
    assert await take(queue) == [tokens(1, 1)]
    with pytest.raises(EngineDead):
        await take(queue)


async def test_nothing_is_held_up_for_ever():
    queue = DeltaQueue(interval=3, max_hold_s=0.01)
    queue.put(tokens(0, 1))
    await take(queue)
    queue.put(tokens(1, 1))
    async with asyncio.timeout(5.0):
        assert await queue.take() == [tokens(1, 1)]
    queue.put(tokens(2, 1))
    assert await is_held_up(queue)
