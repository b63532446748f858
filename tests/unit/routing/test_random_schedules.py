"""Clients come and go while engines join, leave and die: every request ends once, with the right tokens."""

import asyncio

import pytest

from support.services.random_schedules import Schedule, ScheduleOverLines

NUM_SCHEDULES = 1000
NUM_SCHEDULES_OVER_LINES = 40


@pytest.mark.parametrize("part", range(4))
async def test_every_request_ends_once_with_the_right_tokens(tokenizer, part):
    ends, longest_queue = [], 0
    for seed in range(part, NUM_SCHEDULES, 4):
        schedule = Schedule(seed, tokenizer)
        ends += await run(schedule, seed)
        longest_queue = max(longest_queue, schedule.longest_queue)
    assert longest_queue > 3  # they did wait for each other
    assert {"finished", "left"} <= set(ends)
    assert ends.count("finished") > len(ends) / 2


async def test_every_request_ends_once_with_the_right_tokens_where_engines_are_in_other_processes(tokenizer):
    ends = []
    for seed in range(NUM_SCHEDULES_OVER_LINES):
        ends += await run(ScheduleOverLines(seed, tokenizer), seed)
    assert {"finished", "left"} <= set(ends)
    assert ends.count("finished") > len(ends) / 2
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def run(schedule, seed):
    try:
        async with asyncio.timeout(20):
            return await schedule.run()
    except BaseException:
        print("SEED", seed)
        raise
