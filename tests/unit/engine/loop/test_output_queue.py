import asyncio
import random
import threading

import pytest

from rayinfer.engine.loop.output_queue import OutputQueue
from rayinfer.outputs import EngineStats, StepMessage, TokenDelta


def message(step, *, deltas=(), stored=(), removed=()):
    return StepMessage(
        deltas=list(deltas),
        stats=EngineStats(num_steps_total=step),
        blocks_stored=list(stored),
        blocks_removed=list(removed),
    )


async def test_a_reader_that_is_behind_gets_one_merged_message_in_order():
    outputs = OutputQueue()
    outputs.put(message(1, deltas=[TokenDelta("a", 0, [5]), TokenDelta("b", 0, [6])]))
    outputs.put(message(2, deltas=[TokenDelta("b", 1, [7], finish_reason="stop")]))
    outputs.put(message(3, deltas=[TokenDelta("a", 1, [8])]))
    merged = await outputs.get()
    assert [(delta.request_id, delta.start_pos, delta.token_ids) for delta in merged.deltas] == [
        ("a", 0, [5]),
        ("b", 0, [6]),
        ("b", 1, [7]),
        ("a", 1, [8]),
    ]
    assert merged.stats.num_steps_total == 3


async def test_merged_block_events_leave_a_reader_with_the_same_blocks():
    chance = random.Random(0)
    for _ in range(50):
        outputs, cached, seen = OutputQueue(), set(), set()
        for step in range(30):
            stored = {bytes([block_hash]) for block_hash in range(8) if chance.random() < 0.3} - cached
            removed = {block_hash for block_hash in cached if chance.random() < 0.3}
            cached = (cached | stored) - removed
            outputs.put(message(step, stored=sorted(stored), removed=sorted(removed)))
            if chance.random() < 0.3:
                merged = await outputs.get()
                assert not set(merged.blocks_stored) & set(merged.blocks_removed)
                seen = (seen | set(merged.blocks_stored)) - set(merged.blocks_removed)
                assert seen == cached


async def test_a_reader_is_woken_by_a_message_from_another_thread():
    outputs = OutputQueue()
    reader = asyncio.create_task(outputs.get())
    await asyncio.sleep(0)
    thread = threading.Thread(target=outputs.put, args=(message(9),))
    thread.start()
    assert (await asyncio.wait_for(reader, 5)).stats.num_steps_total == 9
    thread.join()


async def test_a_closed_queue_returns_its_message_and_then_none():
    outputs = OutputQueue()
    outputs.put(message(1))
    outputs.close()
    assert (await outputs.get()).stats.num_steps_total == 1
    assert await outputs.get() is None
    assert await outputs.get() is None


async def test_closing_wakes_a_reader():
    outputs = OutputQueue()
    reader = asyncio.create_task(outputs.get())
    await asyncio.sleep(0)
    outputs.close()
    assert await asyncio.wait_for(reader, 5) is None


async def test_a_reader_that_is_cancelled_loses_nothing():
    outputs = OutputQueue()
    reader = asyncio.create_task(outputs.get())
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.wait([reader])
    outputs.put(message(4))
    assert (await outputs.get()).stats.num_steps_total == 4


def test_a_closed_event_loop_of_the_reader_does_not_disturb_the_writer():
    outputs = OutputQueue()

    async def give_up():
        with_timeout = asyncio.wait_for(outputs.get(), 0.01)
        await asyncio.gather(with_timeout, return_exceptions=True)

    asyncio.run(give_up())
    outputs.put(message(1))
    assert asyncio.run(outputs.get()).stats.num_steps_total == 1


async def test_a_reader_that_timed_out_gets_the_next_message():
    outputs = OutputQueue()
    with pytest.raises(TimeoutError):
        await outputs.get(0.01)
    outputs.put(message(3))
    assert (await outputs.get(5)).stats.num_steps_total == 3
