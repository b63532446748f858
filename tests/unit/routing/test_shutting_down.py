import asyncio

import pytest

from rayinfer.errors import EngineDead, ShuttingDown
from rayinfer.outputs import Credits, EngineStats
from support.fakes.fake_service import Service
from support.services.polling import until


@pytest.fixture
async def service(tokenizer):
    service = Service(tokenizer, 1)
    yield service
    await service.dispatcher.close()


async def test_a_dispatcher_that_admits_nothing_reports_it_and_lets_open_streams_end(service):
    stream = await service.start()
    assert (service.dispatcher.num_open, service.dispatcher.overload()) == (1, None)
    service.dispatcher.stop_admitting()
    assert isinstance(service.dispatcher.overload(), ShuttingDown)
    status = service.dispatcher.status()
    assert (status.ready, status.reason) == (False, "the service is shutting down")
    service.say("a/0", "Y", "length")
    assert (await anext(stream)).finished
    await stream.aclose()
    assert service.dispatcher.num_open == 0


async def test_closing_ends_running_and_waiting_requests_with_shutting_down(service):
    running = await service.start("a")
    service.engines[0].say(stats=EngineStats(credits=Credits(num_requests=1)))
    await until(lambda: not service.engines[0].has_unread)
    waiting = asyncio.ensure_future(anext(service.open("b")))
    await until(lambda: service.dispatcher.num_open == 2)
    await service.dispatcher.close()
    for reading in (anext(running), waiting):
        with pytest.raises(ShuttingDown):
            await reading
    assert service.dispatcher.num_open == 0


async def test_closing_ends_a_stream_that_waits_for_another_engine(service):
    stream = await service.start()
    service.engines[0].die(EngineDead("gone"))
    reading = asyncio.ensure_future(anext(stream))
    await until(lambda: service.dispatcher.engines.is_waited_for)
    await service.dispatcher.close()
    with pytest.raises(ShuttingDown):
        async with asyncio.timeout(1):
            await reading
