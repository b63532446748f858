"""Adapters are read beside the steps, while their requests wait and others go on."""

import asyncio
from dataclasses import replace

import pytest

from rayinfer.engine.loop.async_engine import AsyncEngine
from rayinfer.errors import AdapterRefused
from rayinfer.kv_cache.adapter_id import adapter_id
from rayinfer.protocols import GenerationRequest, LoadAdapter
from rayinfer.sampling_params import SamplingParams
from support.fakes.fake_executor import drive
from support.kernels.memory_use import held_bytes
from support.services.polling import until


class Driven:
    """An engine in its thread, and what a router has read of it."""

    def __init__(self):
        driven = drive(num_blocks=256)
        self.executor, self.engine = driven.executor, AsyncEngine(driven.engine)
        self.num_tokens, self.ends = {}, {}

    async def read(self):
        async for message in self.engine.outputs("r"):
            for delta in message.deltas:
                known = self.num_tokens.get(delta.request_id, 0)
                self.num_tokens[delta.request_id] = known + len(delta.token_ids)
                if delta.finish_reason is not None:
                    self.ends[delta.request_id] = (delta.finish_reason, delta.error)

    async def add(self, name, adapter=None, max_tokens=2):
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        request = GenerationRequest(request_id=name, prompt_token_ids=[5, 6, 7], sampling_params=params)
        if adapter is not None:
            request = replace(request, adapter=adapter_id(adapter, adapter), adapter_folder=adapter)
        await self.engine.submit([request], "r")


@pytest.fixture
async def driven():
    driven = Driven()
    driven.engine.start()
    reading = asyncio.ensure_future(driven.read())
    yield driven
    reading.cancel()
    await driven.engine.shutdown()


async def goes_on(driven):
    """Compute a request without an adapter."""
    await driven.add("other")
    await until(lambda: "other" in driven.ends, timeout_s=20)
    assert driven.ends.pop("other") == ("length", None)


async def test_streams_go_on_while_an_adapter_is_read(driven):
    for name in ("first", "second"):
        await driven.add(name, "poems")
    await until(lambda: "poems" in driven.executor.reading)
    await goes_on(driven)
    assert driven.ends == {}
    assert driven.engine.stats.adapters.waiting == ["poems"]
    driven.executor.reading["poems"].set_result(None)
    await until(lambda: len(driven.ends) == 2)
    assert driven.ends == {"first": ("length", None), "second": ("length", None)}
    assert driven.engine.stats.adapters.loads_total == 1  # both have waited for the same


async def test_a_refused_adapter_ends_its_requests_only(driven):
    await driven.add("bad", "broken")
    await until(lambda: "broken" in driven.executor.reading)
    driven.executor.reading["broken"].set_exception(AdapterRefused("tensor x is not finite"))
    await until(lambda: "bad" in driven.ends)
    assert driven.ends == {"bad": ("error", "tensor x is not finite")}
    await goes_on(driven)


async def test_a_request_may_be_aborted_while_its_adapter_is_read_and_others_wait_on(driven):
    for name in ("gone", "patient"):
        await driven.add(name, "poems")
    await until(lambda: "poems" in driven.executor.reading)
    await driven.engine.abort(["gone"])
    await until(lambda: driven.ends.get("gone") == ("abort", None))
    driven.executor.reading["poems"].set_result(None)
    await until(lambda: "patient" in driven.ends)
    assert driven.ends == {"gone": ("abort", None), "patient": ("length", None)}
    assert driven.num_tokens.get("gone", 0) == 0


async def test_streams_go_on_while_operators_load_an_adapter(driven):
    loading = asyncio.ensure_future(driven.engine.control(LoadAdapter("sql")))
    await until(lambda: "sql" in driven.executor.reading)
    await goes_on(driven)
    assert not loading.done()
    driven.executor.reading["sql"].set_result(None)
    assert await loading == ["sql"]


async def test_adapters_of_requests_that_left_meanwhile_leave_memory_like_others(driven):
    """Only eight may stay, however many were read for requests that had left by then."""
    names = [f"adapter {number}" for number in range(20)]
    for name in names:
        await driven.add(name, name)
    await until(lambda: len(driven.executor.reading) == 20)
    await driven.engine.abort(names)
    await until(lambda: len(driven.ends) == 20)
    for name in names:
        if name == names[0]:
            driven.executor.reading[name].set_exception(AdapterRefused("tensor x is not finite"))
        else:
            driven.executor.reading[name].set_result(None)
    await until(lambda: driven.engine.stats.adapters.loads_total == 19)
    stats = driven.engine.stats.adapters
    assert (stats.num_resident, stats.evictions_total, stats.failed_loads_total) == (8, 11, 1)
    assert driven.executor.reading == {}
    await driven.add("again", names[0])
    await until(lambda: names[0] in driven.executor.reading)
    driven.executor.reading[names[0]].set_result(None)
    await until(lambda: driven.ends.get("again") == ("length", None))


def test_engines_remember_nothing_of_adapters_that_have_left_memory():
    driven = drive()
    sizes = []
    for number in range(300):
        driven.engine.adapters.load(f"adapter {number:03}")
        sizes.append(held_bytes(driven.scheduler.batch.adapters))
    assert sizes[-1] <= sizes[20]
