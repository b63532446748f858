"""Scale from zero: requests wait for the first engine."""

import asyncio

import pytest

from rayinfer.errors import EngineDead, ModelFilesGone, NotReady
from rayinfer.routing.first_tokens import FirstTokens
from support.fakes.fake_service import Service, running
from support.services.polling import until


@pytest.fixture
async def service(tokenizer):
    async with running(Service(tokenizer, 1, first_tokens=FirstTokens(2.0), engine_wait_s=0.2)) as service:
        yield service


async def test_the_first_engine_is_needed_to_know_the_model(tokenizer):
    async with running(Service(tokenizer, 0, first_tokens=FirstTokens(2.0))) as service:
        assert service.dispatcher.needs_engine
        assert not service.dispatcher.status().ready
        with pytest.raises(NotReady):
            service.open()
        service.add_engine()
        assert not service.dispatcher.needs_engine


async def test_a_model_without_an_engine_is_ready_until_a_request_needs_one(service):
    service.dispatcher.engines.drain("engine-0")
    assert service.dispatcher.status().ready
    assert service.dispatcher.describe().max_model_len == 100
    assert not service.dispatcher.needs_engine
    reading = asyncio.ensure_future(anext(service.open()))
    await until(lambda: service.dispatcher.needs_engine)
    engine = service.add_engine()
    await until(lambda: service.engines[engine].submitted)
    assert not service.dispatcher.needs_engine
    service.say("a/0", "Z", "length", engine=engine)
    assert (await reading).outputs[0].text == "Z"


async def test_requests_do_not_wait_forever_for_an_engine(service):
    service.dispatcher.engines.drain("engine-0")
    with pytest.raises(NotReady):
        await anext(service.open())
    assert not service.dispatcher.needs_engine


async def test_a_request_whose_time_is_up_before_an_engine_comes_ends_for_that(service):
    service.dispatcher.engines.drain("engine-0")
    output = await anext(service.open(timeout_s=0.05))
    assert output.outputs[0].finish_reason == "timeout"
    assert not service.dispatcher.needs_engine


async def test_a_client_that_leaves_takes_its_need_with_it(service):
    service.dispatcher.engines.drain("engine-0")
    reading = asyncio.ensure_future(anext(service.open()))
    await until(lambda: service.dispatcher.needs_engine)
    reading.cancel()
    await until(lambda: not service.dispatcher.needs_engine)


async def test_a_stream_that_loses_the_last_engine_needs_another(service):
    stream = await service.start()
    service.engines[0].die(EngineDead("gone"))
    reading = asyncio.ensure_future(anext(stream))
    await until(lambda: service.dispatcher.needs_engine)
    engine = service.add_engine()
    await until(lambda: service.engines[engine].submitted)
    assert not service.dispatcher.needs_engine
    service.say(service.engines[engine].submitted_ids[-1], "Z", "length", engine=engine)
    assert (await reading).outputs[0].text == "Z"


async def test_an_engine_that_ended_before_it_took_the_request_is_one_to_wait_for(service):
    service.engines[0].submit_error = EngineDead("gone")
    reading = asyncio.ensure_future(anext(service.open()))
    await until(lambda: service.dispatcher.needs_engine)
    engine = service.add_engine()
    await until(lambda: service.engines[engine].submitted)
    service.say(service.engines[engine].submitted_ids[-1], "Z", "length", engine=engine)
    assert (await reading).outputs[0].text == "Z"


async def test_without_autoscaling_a_model_without_an_engine_refuses_at_once(tokenizer):
    async with running(Service(tokenizer, 1)) as service:
        service.dispatcher.engines.drain("engine-0")
        assert not service.dispatcher.status().ready
        with pytest.raises(NotReady):
            service.open()


async def test_no_request_waits_for_an_engine_that_cannot_start(tokenizer):
    """A new one, and one that has lost its engine: both would wait for a minute."""
    async with running(Service(tokenizer, 1, first_tokens=FirstTokens(2.0), engine_wait_s=60.0)) as service:
        lost = asyncio.ensure_future(anext(service.open("lost")))
        await until(lambda: service.engines[0].submitted)
        engines = service.dispatcher.engines
        engines.find_missing_files = lambda: "its folder 'm' has been deleted"
        assert service.dispatcher.status().ready  # the engine that runs needs no files
        service.engines[0].die(EngineDead("gone"))
        async with asyncio.timeout(10):
            with pytest.raises(ModelFilesGone, match="'m' cannot answer, and no engine can start: its folder 'm' has"):
                await lost
            with pytest.raises(ModelFilesGone):
                await anext(service.open("new"))
        assert "has been deleted" in service.dispatcher.status().reason
        engines.find_missing_files = lambda: ""
        reading = asyncio.ensure_future(anext(service.open("later")))
        await until(lambda: service.dispatcher.needs_engine)
        reading.cancel()
