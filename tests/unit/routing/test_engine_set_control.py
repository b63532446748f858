"""All engines of a model stopped and started together, and what a dispatcher makes of their states."""

import asyncio

import pytest

from rayinfer.errors import EngineDead, NotReady, WrongEngineState
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.outputs import EngineStats
from rayinfer.protocols import GenerationRequest, GetState, Pause, Resume, Sleep, Wake
from rayinfer.routing.dispatch import Dispatcher
from rayinfer.sampling_params import SamplingParams
from support.fakes.fake_engine_client import FakeEngineClient


@pytest.fixture
async def engines():
    return [FakeEngineClient() for _ in range(3)]


@pytest.fixture
async def dispatcher(tokenizer, engines):
    dispatcher = Dispatcher("m", tokenizer, ServiceMetrics(), router_id="r")
    for index, engine in enumerate(engines):
        dispatcher.engines.add(f"engine-{index}", engine, engine.description)
    yield dispatcher
    await dispatcher.close()


async def report_states(dispatcher, engines, *states):
    """Let the engines report their states, and wait until they are known."""
    for engine, state in zip(engines, states, strict=True):
        engine.say(stats=EngineStats(state=state))
    for _ in range(10):
        await asyncio.sleep(0)
    assert [stats.state for stats in dispatcher.status().engines.values()] == list(states)


async def test_every_engine_gets_the_command(dispatcher, engines):
    await dispatcher.engine_set_control.control(Pause())
    assert await dispatcher.engine_set_control.control(GetState()) == ["paused"] * 3
    await dispatcher.engine_set_control.control(Sleep(2))
    assert await dispatcher.engine_set_control.control(GetState()) == ["asleep"] * 3
    await dispatcher.engine_set_control.control(Wake())
    await dispatcher.engine_set_control.control(Resume())
    assert await dispatcher.engine_set_control.control(GetState()) == ["running"] * 3
    assert [engine.controls for engine in engines] == [[Pause(), Sleep(2), Wake(), Resume()]] * 3


@pytest.mark.parametrize("error", [WrongEngineState("asleep at level 1"), EngineDead("it is gone")])
async def test_one_engine_that_cannot_does_not_keep_the_others_from_it(dispatcher, engines, error):
    engines[1].control_error = error
    with pytest.raises(type(error), match=str(error)):
        await dispatcher.engine_set_control.control(Pause())
    assert [engine.state for engine in engines] == ["paused", "running", "paused"]


async def test_an_error_is_raised_after_every_engine_got_the_command(dispatcher, engines):
    engines[1].control_error = EngineDead("it is gone")
    engines[2].control_may_return.clear()
    pausing = asyncio.ensure_future(dispatcher.engine_set_control.control(Pause()))
    for _ in range(10):
        await asyncio.sleep(0)
    has_answered = pausing.done()
    engines[2].control_may_return.set()
    with pytest.raises(EngineDead):
        await pausing
    assert (has_answered, engines[2].state) == (False, "paused")


async def test_a_cancelled_command_still_reaches_every_engine(dispatcher, engines):
    for engine in engines:
        engine.control_may_return.clear()
    pausing = asyncio.ensure_future(dispatcher.engine_set_control.control(Pause()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    pausing.cancel()
    await asyncio.wait([pausing])
    for engine in engines:
        engine.control_may_return.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert [engine.state for engine in engines] == ["paused"] * 3


async def test_control_of_a_model_without_engines_is_rejected(tokenizer):
    lonely = Dispatcher("m", tokenizer, ServiceMetrics(), router_id="r")
    for action in (Pause(), GetState()):
        with pytest.raises(NotReady, match="'m' has no engine"):
            await lonely.engine_set_control.control(action)


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        (("asleep", "asleep", "asleep"), "asleep"),
        (("paused", "paused", "paused"), "paused"),
        (("asleep", "paused", "asleep"), "asleep, paused"),
    ],
)
async def test_a_model_of_which_no_engine_runs_is_not_ready_and_says_why(dispatcher, engines, states, reason):
    await report_states(dispatcher, engines, *states)
    assert (dispatcher.status().ready, dispatcher.status().reason) == (False, reason)
    await report_states(dispatcher, engines, "running", *states[1:])
    assert (dispatcher.status().ready, dispatcher.status().reason) == (True, "")


async def test_requests_go_to_an_engine_that_runs_and_else_wait_at_any(dispatcher, engines, tokenizer):
    async def send(request_id):
        request = GenerationRequest(
            request_id=request_id, prompt_token_ids=tokenizer.encode("hello"), sampling_params=SamplingParams()
        )
        sending = asyncio.ensure_future(anext(dispatcher.generate(request)))
        for _ in range(10):
            await asyncio.sleep(0)
        return sending

    await report_states(dispatcher, engines, "paused", "running", "asleep")
    sendings = [await send(f"a{number}") for number in range(3)]
    assert [len(engine.submitted) for engine in engines] == [0, 3, 0]
    await report_states(dispatcher, engines, "paused", "paused", "paused")
    sendings += [await send(f"b{number}") for number in range(2)]
    assert [len(engine.submitted) for engine in engines] == [1, 3, 1]
    for sending in sendings:
        sending.cancel()
    await asyncio.wait(sendings)


async def join(dispatcher, name="late"):
    """Add an engine, and let what follows happen."""
    engine = FakeEngineClient()
    dispatcher.engines.add(name, engine, engine.description)
    for _ in range(10):
        await asyncio.sleep(0)
    return engine


async def test_an_engine_that_joins_during_a_pause_is_paused(dispatcher, engines):
    await dispatcher.engine_set_control.control(Pause())
    await report_states(dispatcher, engines, *["paused"] * 3)
    late = await join(dispatcher)
    assert late.controls == [Pause()]
    assert dispatcher.status().engines["late"].state == "paused"
    await dispatcher.engine_set_control.control(Resume())
    assert late.controls == [Pause(), Resume()]
    assert (await join(dispatcher, "later")).controls == []


async def test_an_engine_that_replaces_all_paused_ones_is_paused(dispatcher, engines):
    await dispatcher.engine_set_control.control(Pause())
    for name in dispatcher.engines.names:
        dispatcher.engines.remove(name, "lost")
    assert (await join(dispatcher)).controls == [Pause()]


async def test_an_engine_runs_that_joins_after_another_router_resumed(dispatcher, engines):
    dispatcher.engine_set_control.settle_s = 0.05
    await dispatcher.engine_set_control.control(Pause())
    await report_states(dispatcher, engines, *["paused"] * 3)
    await asyncio.sleep(0.06)
    await report_states(dispatcher, engines, *["running"] * 3)
    assert (await join(dispatcher)).controls == []


async def test_an_engine_that_was_paused_by_an_old_report_is_resumed(dispatcher, engines):
    dispatcher.engine_set_control.settle_s = 0.05
    await report_states(dispatcher, engines, *["paused"] * 3)  # by another router, which resumes them just now
    late = await join(dispatcher)
    await report_states(dispatcher, [*engines, late], *["running"] * 3, "paused")
    await asyncio.sleep(0.1)
    assert late.controls == [Pause(), Resume()]
    assert (await join(dispatcher, "later")).controls == []


async def test_an_engine_that_joins_at_a_router_which_knows_of_no_pause_is_paused_like_the_others(dispatcher, engines):
    await report_states(dispatcher, engines, *["paused"] * 3)
    assert (await join(dispatcher)).controls == [Pause()]


async def test_reports_that_are_older_than_a_pause_end_none(dispatcher, engines):
    await dispatcher.engine_set_control.control(Pause())
    await report_states(dispatcher, engines, *["running"] * 3)
    assert (await join(dispatcher)).controls == [Pause()]


async def test_engines_that_join_one_after_the_other_during_a_pause_are_all_paused(dispatcher, engines):
    await dispatcher.engine_set_control.control(Pause())
    await report_states(dispatcher, engines, *["paused"] * 3)
    first = FakeEngineClient()
    first.control_may_return.clear()
    dispatcher.engines.add("first", first, first.description)
    await report_states(dispatcher, [*engines, first], *["paused"] * 3, "running")  # it has not carried it out yet
    second = await join(dispatcher, "second")
    first.control_may_return.set()
    await asyncio.sleep(0.01)
    assert (first.state, second.state) == ("paused", "paused")


async def test_the_replacement_of_an_engine_that_died_under_a_pause_is_paused(dispatcher, engines):
    engines[1].control_error = EngineDead("it is gone")
    with pytest.raises(EngineDead):
        await dispatcher.engine_set_control.control(Pause())
    dispatcher.engines.remove("engine-1", "lost")
    assert (await join(dispatcher)).controls == [Pause()]


async def test_an_engine_that_cannot_pause_when_it_joins_harms_nothing(dispatcher):
    await dispatcher.engine_set_control.control(Pause())
    late = FakeEngineClient()
    late.control_error = WrongEngineState("asleep at level 1")
    dispatcher.engines.add("late", late, late.description)
    await asyncio.sleep(0.01)
    assert "late" in dispatcher.engines.names
