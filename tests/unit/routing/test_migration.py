"""Streams go on when their engine is lost or leaves, and clients see nothing of it."""

import asyncio

import pytest

from rayinfer.errors import EngineDead
from rayinfer.routing.retry_budget import MAX_CRASHED, RetryBudget
from support.fakes.fake_service import Service, running
from support.services.polling import until


@pytest.fixture
async def service(tokenizer):
    async with running(Service(tokenizer, 2)) as service:
        yield service


def last_request(service, engine):
    return service.engines[engine].submitted[-1]


async def read_on(service, stream, engine, text="rest", request_id="a/0@1"):
    """Have an engine say the rest of a stream, and read it."""
    reading = asyncio.ensure_future(anext(stream))
    await until(lambda: request_id in service.engines[engine].submitted_ids)
    service.say(request_id, text, "length", engine=engine)
    return await reading


@pytest.mark.parametrize("loss", ["dies", "leaves"])
async def test_a_stream_goes_on_from_its_tokens_on_another_engine(service, loss):
    stream = await service.start("a", engine=0, temperature=0.8)
    if loss == "dies":
        service.engines[0].die(EngineDead("its process is gone"))
    else:
        service.dispatcher.engines.drain("engine-0")
    last = await read_on(service, stream, engine=1)
    assert (last.outputs[0].text, last.finished) == ("rest", True)
    first, second = service.engines[0].submitted[0], last_request(service, 1)
    assert (first.output_token_ids, second.output_token_ids) == ([], service.tokenizer.encode("X"))
    assert (first.attempt, second.attempt) == (0, 1)
    assert second.sampling_params == first.sampling_params  # the seed among them, drawn for a client that gave none
    await until(lambda: service.dispatcher.engines.names == ["engine-1"] or loss == "leaves")
    assert service.metric('rayinfer_migrations_total{model_name="m"}') == 1.0
    assert service.metric('vllm:request_success_total{finished_reason="length"') == 1.0
    assert service.metric('rayinfer_migration_gap_seconds_count{model_name="m"}') == 1.0
    assert service.metric('rayinfer_engines_lost_total{model_name="m"}') == float(loss == "dies")


async def test_a_stream_keeps_its_adapter_on_another_engine(service):
    stream = await service.start("a", engine=0, adapter="poems")
    service.engines[0].die(EngineDead("its process is gone"))
    assert (await read_on(service, stream, engine=1)).finished
    second = last_request(service, 1)
    assert (second.adapter, second.adapter_folder) == ("poems@digest", "/adapters/poems")
    assert second.output_token_ids == service.tokenizer.encode("X")
    counted = 'rayinfer_adapter_requests_total{adapter="poems",finished_reason="length",model_name="m"}'
    assert service.metric(counted) == 1.0


async def test_tokens_before_the_loss_are_delivered_before_the_migration(service):
    stream = await service.start()
    service.say("a/0", "last words")
    service.engines[0].die(EngineDead("gone"))
    assert (await anext(stream)).outputs[0].text == "last words"
    await read_on(service, stream, engine=1)
    assert last_request(service, 1).output_token_ids == service.tokenizer.encode("Xlast words")


async def test_a_trace_has_the_tokens_that_a_lost_engine_gave(service):
    stream = await service.start(trace=True)
    service.engines[0].die(EngineDead("gone"))
    await read_on(service, stream, engine=1)
    (migrated,) = [details for name, details in service.trace() if name == "migrated"]
    given = len(service.tokenizer.encode("X"))
    assert 0 <= migrated.pop("first_token_s") < 60
    assert migrated == {"prompt": None, "engine": "engine-0", "reason": "engine lost", "output_tokens": given}


async def test_a_stream_that_migrates_before_its_first_token_has_no_time_to_it(service):
    reading = asyncio.ensure_future(anext(service.open("a", trace=True)))
    await until(lambda: "a/0" in service.engines[0].submitted_ids)
    service.engines[0].die(EngineDead("gone"))
    await until(lambda: "a/0@1" in service.engines[1].submitted_ids)
    service.say("a/0@1", "X", "length", engine=1)
    assert (await reading).finished
    (migrated,) = [details for name, details in service.trace() if name == "migrated"]
    assert "first_token_s" not in migrated


async def test_only_the_choices_that_are_open_go_on(service):
    stream = await service.start(n=3)
    service.say("a/1", "done", "length")
    assert (await anext(stream)).outputs[0].finish_reason == "length"
    service.engines[0].die(EngineDead("gone"))
    reading = asyncio.ensure_future(anext(stream))
    await until(lambda: service.engines[1].submitted)
    assert service.engines[1].submitted_ids == ["a/0@1", "a/2@1"]
    assert [len(request.output_token_ids) for request in service.engines[1].submitted] == [1, 0]
    reading.cancel()


async def test_deltas_after_a_migration_are_dropped(service):
    stream = await service.start()
    service.dispatcher.engines.drain("engine-0")
    reading = asyncio.ensure_future(anext(stream))
    await until(lambda: service.engines[1].submitted)
    service.say("a/0", "late", engine=0)
    await until(lambda: service.engines[0].aborted == ["a/0"])
    service.say("a/0@1", "Y", "length", engine=1)
    assert (await reading).outputs[0].text == "Y"


async def test_streams_of_the_only_engine_end_there_when_it_leaves(tokenizer):
    async with running(Service(tokenizer, 1)) as service:
        stream = await service.start()
        service.dispatcher.engines.drain("engine-0")
        service.say("a/0", "done", "length")
        assert (await anext(stream)).finished
        await until(lambda: service.dispatcher.engines.names == [] and not service.engines[0].is_listened_to)


async def test_a_stream_that_was_left_behind_moves_when_an_engine_joins(tokenizer):
    async with running(Service(tokenizer, 1)) as service:
        stream = await service.start()
        service.dispatcher.engines.drain("engine-0")
        service.add_engine()
        assert (await read_on(service, stream, engine=1)).finished
        assert service.engines[0].aborted == ["a/0"]


async def test_a_stream_waits_for_an_engine_to_come(tokenizer):
    async with running(Service(tokenizer, 1)) as service:
        stream = await service.start()
        service.engines[0].die(EngineDead("gone"))
        await until(lambda: not service.dispatcher.engines.names)
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.05)
        service.add_engine()
        await until(lambda: service.engines[1].submitted)
        service.say("a/0@1", "Y", "length", engine=1)
        assert (await reading).finished


async def test_a_stream_that_no_engine_comes_for_ends_with_an_error(tokenizer):
    async with running(Service(tokenizer, 1, engine_wait_s=0.02)) as service:
        stream = await service.start()
        service.engines[0].die(EngineDead("gone"))
        with pytest.raises(EngineDead, match=r"^the engine that ran the request is gone, and no other has come$"):
            await anext(stream)
        assert service.metric('vllm:request_success_total{finished_reason="error"') == 1.0


async def test_a_stream_whose_time_runs_out_while_it_waits_ends_with_timeout(tokenizer):
    async with running(Service(tokenizer, 1)) as service:
        stream = await service.start(timeout_s=0.1)
        service.engines[0].die(EngineDead("gone"))
        last = await anext(stream)
        assert (last.finished, last.outputs[0].finish_reason) == (True, "timeout")


async def test_a_stream_that_ends_every_engine_is_refused_after_three(tokenizer):
    async with running(Service(tokenizer, 4)) as service:
        reading = asyncio.ensure_future(anext(service.open()))
        for engine in range(3):
            await until(lambda engine=engine: service.engines[engine].submitted)
            service.engines[engine].die(EngineDead("gone"))
        with pytest.raises(EngineDead, match="every engine that tried to compute this request has ended"):
            await reading
        assert service.engines[3].submitted == []


async def lose_two_engines(service, names):
    """Open streams that all lose two engines before their first tokens, and have none left; returns their readings."""
    readings = [asyncio.ensure_future(anext(service.open(name))) for name in names]
    for engine in range(2):
        if engine:
            service.add_engine()
        await until(lambda engine=engine: len(service.engines[engine].submitted) == len(names))
        service.engines[engine].die(EngineDead("gone"))
        await until(lambda: not service.dispatcher.engines.names)
    return readings


async def test_suspicious_streams_run_one_at_a_time_until_they_gain_a_token(tokenizer):
    async with running(Service(tokenizer, 1)) as service:
        readings = await lose_two_engines(service, "abc")
        service.add_engine()
        third = service.engines[2]
        for num_tried in (1, 2, 3):
            await until(lambda num_tried=num_tried: len(third.submitted) == num_tried)
            await asyncio.sleep(0.01)
            assert len(third.submitted) == num_tried, "the others wait for their turn"
            service.say(third.submitted_ids[-1], "Y", engine=2)
        assert [(await reading).outputs[0].text for reading in readings] == ["Y", "Y", "Y"]


async def test_the_time_in_which_there_was_no_engine_does_not_count_for_those_that_wait_for_their_turn(tokenizer):
    async with running(Service(tokenizer, 1, engine_wait_s=3.0)) as service:
        readings = await lose_two_engines(service, "ab")
        await asyncio.sleep(1.8)
        service.add_engine()
        third = service.engines[2]
        await until(lambda: third.submitted)
        await asyncio.sleep(1.8)
        for num_tried in (1, 2):
            await until(lambda num_tried=num_tried: len(third.submitted) == num_tried)
            service.say(third.submitted_ids[-1], "Y", engine=2)
        assert [(await reading).outputs[0].text for reading in readings] == ["Y", "Y"]


async def test_engines_that_come_and_go_give_suspicious_streams_time_until_the_next_one(tokenizer):
    """Engines are gone before they have the first stream; the second one has not been waiting for it all the time."""
    async with running(Service(tokenizer, 1, engine_wait_s=3.0)) as service:
        readings = await lose_two_engines(service, "ab")
        for _ in range(3):
            await asyncio.sleep(1.2)
            engine = service.engines[service.add_engine()]
            engine.submit_may_arrive.clear()
            await asyncio.sleep(0.01)
            engine.die(EngineDead("gone"))
            await until(lambda: not service.dispatcher.engines.names)
        number = service.add_engine()
        for num_tried in (1, 2):
            await until(lambda num_tried=num_tried: len(service.engines[number].submitted) == num_tried)
            service.say(service.engines[number].submitted_ids[-1], "Y", engine=number)
        assert [(await reading).outputs[0].text for reading in readings] == ["Y", "Y"]


async def test_an_engine_that_is_in_one_step_for_too_long_is_lost(service):
    stream = await service.start()
    service.engines[0].say(stalled_s=4.9, stall_limit_s=5.0)
    assert service.dispatcher.engines.names == ["engine-0", "engine-1"]
    service.engines[0].say(stalled_s=5.1, stall_limit_s=5.0)
    for _ in range(10):  # long before the engine would count as hung
        await asyncio.sleep(0)
    assert service.dispatcher.engines.names == ["engine-1"]
    assert (await read_on(service, stream, engine=1)).finished


async def test_a_silent_engine_is_lost_where_another_can_continue(tokenizer):
    async with running(Service(tokenizer, 2, link_tick_s=0.02, link_timeout_s=1.0)) as service:
        stream = await service.start()
        reading = asyncio.ensure_future(read_on(service, stream, engine=1))
        while not reading.done():
            service.engines[1].say()  # the other one lives
            await asyncio.sleep(0.01)
        assert reading.result().finished
        assert service.dispatcher.engines.names == ["engine-1"]


async def test_the_last_engine_is_lost_after_a_longer_silence(tokenizer):
    limits = {"link_tick_s": 0.02, "link_timeout_s": 0.04, "last_link_timeout_s": 0.3}
    async with running(Service(tokenizer, 1, **limits)) as service:
        await service.start()
        started = asyncio.get_running_loop().time()
        await until(lambda: not service.dispatcher.engines.names)
        assert asyncio.get_running_loop().time() - started >= 0.25
        await until(lambda: not service.engines[0].is_listened_to)


def test_a_stream_that_loses_sixteen_engines_is_rejected_despite_its_progress():
    attempts = RetryBudget()
    for number in range(MAX_CRASHED):
        assert not attempts.is_exhausted
        attempts.begin()
        attempts.migrated(2 * number)  # one that leaves is nobody's fault
        attempts.lost(2 * number + 1)
    assert not attempts.may_crash_engines
    assert attempts.is_exhausted
