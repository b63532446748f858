import asyncio
import contextlib

from rayinfer.credits import credits_of_each
from rayinfer.outputs import Credits
from rayinfer.protocols import ModelDescription
from support.services.async_engines import running


def description(**fields):
    return ModelDescription(name="m", max_model_len=9, vocab_size=3, created=1, **fields)


def test_an_engine_takes_its_batch_and_a_few_more_its_cache_and_two_steps_of_prompts():
    known = description(max_num_seqs=64, max_num_batched_tokens=512, kv_blocks_total=100, block_size=16)
    assert credits_of_each(known, 1) == Credits(72, 1600, 1024)
    assert credits_of_each(known, 3) == Credits(24, 533, 341)


def test_each_router_may_send_something_however_many_there_are():
    known = description(max_num_seqs=2, max_num_batched_tokens=2, kv_blocks_total=1, block_size=4)
    assert credits_of_each(known, 100) == Credits(1, 1, 1)


def test_a_limit_that_is_not_given_does_not_bound():
    assert credits_of_each(description(), 2) == Credits()


async def test_an_engine_grants_each_router_its_credits():
    async with running(num_blocks=100) as engine:
        whole, half = (credits_of_each(engine.description, num_routers) for num_routers in (1, 2))
        assert await next_credits(engine, "first") == whole != half
        async with contextlib.aclosing(engine.outputs("first")) as first:
            await anext(first)
            assert await next_credits(engine, "second") == half
            while (await anext(first)).stats.credits != whole:  # a heartbeat brings it
                pass


async def next_credits(engine, router_id):
    async with asyncio.timeout(10), contextlib.aclosing(engine.outputs(router_id)) as messages:
        return (await anext(messages)).stats.credits
