import asyncio

import pytest
from ray.serve.exceptions import RequestCancelledError

from rayinfer_deployments.cold_start import start_engines


class Call:
    """A call through Serve that waits for a replica."""

    def __init__(self):
        self.answer = asyncio.get_running_loop().create_future()
        self.is_cancelled = False

    def __await__(self):
        return self.answer.__await__()

    def cancel(self):
        self.is_cancelled = True
        if not self.answer.done():
            self.answer.set_exception(RequestCancelledError("a"))  # as Serve does


class Handle:
    def __init__(self):
        self.calls = []

    @property
    def awaken(self):
        return self

    def remote(self):
        self.calls.append(Call())
        return self.calls[-1]


class Need:
    is_there = False


@pytest.fixture
def need():
    return Need()


@pytest.fixture
async def handle(need):
    handle = Handle()
    starting = asyncio.create_task(start_engines(handle, lambda: need.is_there))
    yield handle
    starting.cancel()
    await asyncio.wait({starting})
    assert all(call.answer.done() for call in handle.calls)


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what it waits for has no event
            await asyncio.sleep(0.01)


async def test_one_call_waits_for_as_long_as_an_engine_is_needed(handle, need):
    await asyncio.sleep(0.3)
    assert handle.calls == []
    need.is_there = True
    await until(lambda: handle.calls)
    await asyncio.sleep(0.3)
    assert len(handle.calls) == 1
    need.is_there = False
    await until(lambda: handle.calls[0].is_cancelled)


async def test_another_call_follows_one_that_was_answered_or_failed_while_the_need_lasts(handle, need):
    need.is_there = True
    await until(lambda: handle.calls)
    handle.calls[0].answer.set_result(None)
    await until(lambda: len(handle.calls) == 2)
    handle.calls[1].answer.set_exception(RuntimeError("no such deployment"))
    await until(lambda: len(handle.calls) == 3)


async def test_a_deployment_that_has_failed_is_asked_less_and_less_often(handle, need):
    need.is_there = True
    for number in range(4):
        await until(lambda number=number: len(handle.calls) == number + 1)
        handle.calls[number].answer.set_exception(RuntimeError("the deployment has failed"))
    await asyncio.sleep(0.5)  # of the 1.6 s until the next one
    assert len(handle.calls) == 4


async def test_who_called_off_its_own_call_asks_again_at_once(handle, need):
    for number in range(5):
        need.is_there = True
        await until(lambda number=number: len(handle.calls) == number + 1)
        need.is_there = False
        await until(lambda number=number: handle.calls[number].is_cancelled)


async def test_what_still_waits_at_the_end_is_called_off(need):
    handle = Handle()
    starting = asyncio.create_task(start_engines(handle, lambda: True))
    await until(lambda: handle.calls)
    starting.cancel()
    await asyncio.wait({starting})
    assert handle.calls[0].is_cancelled
