import asyncio

import pytest

from rayinfer.routing.bounded_wait import wait_within


@pytest.mark.parametrize("timeout_s", [None, 10.0])
async def test_a_result_that_comes_in_time_is_returned(timeout_s):
    future = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(wait_within(future, timeout_s))
    await asyncio.sleep(0)
    future.set_result("here")
    assert await waiting == "here"


@pytest.mark.parametrize("timeout_s", [0.0, 0.001])
async def test_what_does_not_come_in_time_is_given_up_for_good(timeout_s):
    future = asyncio.get_running_loop().create_future()
    with pytest.raises(TimeoutError):
        await wait_within(future, timeout_s)
    assert future.done()


@pytest.mark.parametrize("timeout_s", [None, 10.0])
async def test_a_cancelled_wait_leaves_no_timer(timeout_s):
    future = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(wait_within(future, timeout_s))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert future.cancelled()
