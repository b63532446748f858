import asyncio

import pytest

from rayinfer.servers.generation.run_until_disconnect import run_until_disconnect


class Client:
    """Receiving end of a connection."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> dict[str, str]:
        await self.left.wait()
        return {"type": "http.disconnect"}


class Work:
    """Work that waits, and records how it ended."""

    def __init__(self) -> None:
        self.started, self.may_end, self.ended_as = asyncio.Event(), asyncio.Event(), ""

    async def run(self) -> None:
        self.started.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # a cleanup that takes its time
            self.ended_as = "cancelled"
            raise
        self.ended_as = "done"


async def test_work_that_ends_first_is_completed():
    work, client = Work(), Client()
    work.may_end.set()
    assert await run_until_disconnect(client.receive, work.run())
    assert work.ended_as == "done"


async def test_work_is_cancelled_and_cleaned_up_when_the_client_leaves():
    work, client = Work(), Client()
    running = asyncio.ensure_future(run_until_disconnect(client.receive, work.run()))
    await work.started.wait()
    client.left.set()
    assert not await running
    assert work.ended_as == "cancelled"


async def test_work_is_cancelled_and_cleaned_up_when_the_caller_is_cancelled():
    work, client = Work(), Client()
    running = asyncio.ensure_future(run_until_disconnect(client.receive, work.run()))
    await work.started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert work.ended_as == "cancelled"


async def test_the_error_of_the_work_is_the_error_of_the_whole():
    async def fail() -> None:
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        await run_until_disconnect(Client().receive, fail())
