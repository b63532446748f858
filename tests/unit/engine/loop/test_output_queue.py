import asyncio
import random
import threading

import pytest

from rayinfer.engine.loop.output_queue import MessageBox
from rayinfer.outputs import EngineStats, StepMessage, TokenDelta


def message(step, *, deltas=(), stored=(), removed=()):
    return StepMessage(
        epoch=1,
        step=step,
        deltas=list(deltas),
        stats=EngineStats(num_steps_total=step),
        blocks_stored=list(stored),
        blocks_removed=list(removed),
    )


async def test_a_reader_that_is_behind_finds_one_message_with_everything_in_order():
    box = MessageBox()
    box.put(message(1, deltas=[TokenDelta("a", 0, [5]), TokenDelta("b", 0, [6])]))
    box.put(message(2, deltas=[TokenDelta("b", 1, [7], finish_reason="stop")]))
    box.put(message(3, deltas=[TokenDelta("a", 1, [8])]))
    merged = await box.take()
    assert [(delta.request_id, delta.start_pos, delta.token_ids) for delta in merged.deltas] == [
        ("a", 0, [5]),
        ("b", 0, [6]),
        ("b", 1, [7]),
        ("a", 1, [8]),
    ]
    assert (merged.step, merged.stats.num_steps_total) == (3, 3)


async def test_block_events_merged_in_any_way_leave_a_reader_with_the_same_blocks():
    chance = random.Random(0)
    for _ in range(50):
        box, cached, seen = MessageBox(), set(), set()
        for step in range(30):
            stored = {bytes([digest]) for digest in range(8) if chance.random() < 0.3} - cached
            removed = {digest for digest in cached if chance.random() < 0.3}
            cached = (cached | stored) - removed
            box.put(message(step, stored=sorted(stored), removed=sorted(removed)))
            if chance.random() < 0.3:
                merged = await box.take()
                assert not set(merged.blocks_stored) & set(merged.blocks_removed)
                seen = (seen | set(merged.blocks_stored)) - set(merged.blocks_removed)
                assert seen == cached


async def test_a_reader_is_woken_by_a_message_from_another_thread():
    box = MessageBox()
    reader = asyncio.create_task(box.take())
    await asyncio.sleep(0)
    thread = threading.Thread(target=box.put, args=(message(9),))
    thread.start()
    assert (await asyncio.wait_for(reader, 5)).step == 9
    thread.join()


async def test_a_closed_box_gives_what_it_has_and_then_none():
    box = MessageBox()
    box.put(message(1))
    box.close()
    assert (await box.take()).step == 1
    assert await box.take() is None
    assert await box.take() is None


async def test_closing_wakes_a_reader():
    box = MessageBox()
    reader = asyncio.create_task(box.take())
    await asyncio.sleep(0)
    box.close()
    assert await asyncio.wait_for(reader, 5) is None


async def test_a_reader_that_is_cancelled_loses_nothing():
    box = MessageBox()
    reader = asyncio.create_task(box.take())
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.wait([reader])
    box.put(message(4))
    assert (await box.take()).step == 4


def test_a_writer_does_not_care_that_the_readers_loop_is_gone():
    box = MessageBox()

    async def give_up():
        with_timeout = asyncio.wait_for(box.take(), 0.01)
        await asyncio.gather(with_timeout, return_exceptions=True)

    asyncio.run(give_up())
    box.put(message(1))
    assert asyncio.run(box.take()).step == 1


async def test_who_has_waited_in_vain_finds_the_next_message_all_the_same():
    box = MessageBox()
    with pytest.raises(TimeoutError):
        await box.take(0.01)
    box.put(message(3))
    assert (await box.take(5)).step == 3
