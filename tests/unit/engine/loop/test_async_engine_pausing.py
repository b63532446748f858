"""Pause and sleep of an asynchronous engine: reports, waiting callers, and their end."""

import asyncio
import threading
from contextlib import aclosing

import pytest

from rayinfer.errors import EngineDead, InvalidParameter, WrongEngineState
from rayinfer.liveness import LivenessLimits
from rayinfer.protocols import GetState, Pause, Resume, Sleep, Wake
from support.fakes.fake_executor import expected_tokens, numbers
from support.services.async_engines import ENDLESS, TIMEOUT_S, collect, request, running
from support.services.polling import until

dies = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Gate:
    """A failure that never happens, and holds the engine's thread up instead."""

    def __init__(self):
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, *_):
        self.reached.set()
        self.opened.wait(TIMEOUT_S)


async def after_the_first_step(gate, change):
    """Have the engine do something while its first step is held up at the gate."""
    await asyncio.to_thread(gate.reached.wait, TIMEOUT_S)
    changing = asyncio.ensure_future(change)
    await asyncio.sleep(0)
    gate.opened.set()
    await changing


async def first_message(engine, router_id, wanted):
    """The first message of which `wanted` is true."""
    async with asyncio.timeout(TIMEOUT_S), aclosing(engine.outputs(router_id)) as messages:
        async for message in messages:
            if wanted(message):
                return message
        return None


async def test_a_stream_stands_still_while_the_engine_is_paused_and_goes_on_to_the_same_tokens():
    gate = Gate()
    async with running(failure=gate) as engine:
        await engine.submit([request("a", numbers(9), 20)], "r")
        await after_the_first_step(gate, engine.control(Pause()))
        await asyncio.sleep(0.05)
        assert len(engine.executor.plans) == 1
        await engine.control(Resume())
        assert await collect(engine, "r", 1) == ({"a": expected_tokens(numbers(9), 20)}, {"a": "length"})


@pytest.mark.parametrize("level", [0, 1, 2])
async def test_streams_go_on_to_the_same_tokens_after_a_sleep(level):
    gate = Gate()
    async with running(num_blocks=200, failure=gate) as engine:
        await engine.submit([request(f"r{i}", numbers(9, i), 100) for i in range(5)], "r")
        reader = asyncio.create_task(collect(engine, "r", 5))
        await after_the_first_step(gate, engine.control(Sleep(level)))
        for _ in range(3):
            assert await engine.control(GetState()) == ["asleep"]
            await engine.control(Wake())
            await asyncio.sleep(0.005)
            await engine.control(Sleep(level))
        await engine.control(Wake())
        tokens, ends = await reader
        assert tokens == {f"r{i}": expected_tokens(numbers(9, i), 100) for i in range(5)}
        assert set(ends.values()) == {"length"}


@pytest.mark.parametrize(("stop", "state"), [("pause", "paused"), ("sleep", "asleep")])
async def test_heartbeats_continue_with_the_state(stop, state):
    async with running(num_blocks=4000, limits=LivenessLimits(loop_heartbeat_s=0.01)) as engine:
        for requests in ([], [request("a", numbers(9), ENDLESS)]):
            await engine.submit(requests, "r")
            await engine.control(Pause() if stop == "pause" else Sleep(1))
            assert engine.stats.state == state
            async with asyncio.timeout(TIMEOUT_S), aclosing(engine.outputs("r")) as messages:
                beats = [await anext(messages) for _ in range(3)]
            assert beats[-1].stats.state == state
            assert engine.stalled_s < 5
            await engine.control(Resume() if stop == "pause" else Wake())
            assert engine.stats.state == "running"


async def test_requests_are_taken_aborted_and_timed_out_while_asleep():
    gate = Gate()
    async with running(failure=gate) as engine:
        await engine.submit([request("before", numbers(9), 20)], "r")
        await after_the_first_step(gate, engine.control(Sleep(2)))
        late = request("comes and times out", numbers(7), timeout_s=0.0)
        await engine.submit([request("comes", numbers(8), 3), late, request("refused", [])], "r")
        await engine.abort(["before"])
        reader = asyncio.create_task(collect(engine, "r", 4))
        await until(lambda: engine.stats.num_waiting == 1)
        assert not reader.done()
        await engine.control(Wake())
        tokens, ends = await reader
        assert ends == {"before": "abort", "comes and times out": "timeout", "refused": "error", "comes": "length"}
        assert tokens["comes"] == expected_tokens(numbers(8), 3)


async def test_what_does_not_go_with_the_state_is_refused_and_the_engine_lives():
    async with running() as engine:
        await engine.control(Sleep(1))
        with pytest.raises(WrongEngineState, match="asleep at level 1: it cannot be paused"):
            await engine.control(Pause())
        with pytest.raises(InvalidParameter, match="got 7"):
            await engine.control(Sleep(7))
        await engine.control(Wake())
        await engine.submit([request("a", numbers(9))], "r")
        assert (await collect(engine, "r", 1))[1] == {"a": "length"}


async def test_an_engine_can_be_shut_down_in_its_sleep():
    async with running(num_blocks=4000) as engine:
        await engine.submit([request("a", numbers(9), ENDLESS)], "r")
        reader = asyncio.create_task(collect(engine, "r", 1))
        await engine.control(Sleep(2))
        await asyncio.wait_for(engine.shutdown(), TIMEOUT_S)
        await reader
        assert engine.executor.is_shut_down
        for action in (Wake(), GetState()):
            with pytest.raises(EngineDead, match="shut down"):
                await engine.control(action)


@dies
@pytest.mark.parametrize("move", ["sleep", "wake"])
async def test_a_failed_change_ends_the_engine_with_its_reason(move):
    async with running(num_blocks=4000) as engine, asyncio.timeout(TIMEOUT_S):
        engine.executor.sleep_failure = MemoryError("no room") if move == "sleep" else None
        engine.executor.wake_failure = FileNotFoundError("no checkpoint")
        readers = [asyncio.create_task(collect(engine, router, 1)) for router in ("r", "other")]
        await engine.submit([request("a", numbers(9), ENDLESS)], "r")
        await until(lambda: engine.stats.num_running)
        reason = "could not fall asleep at level 2: MemoryError: no room"
        if move == "wake":
            await engine.control(Sleep(2))
            reason = "could not wake from level 2: FileNotFoundError: no checkpoint"
        with pytest.raises(EngineDead, match=reason):
            await engine.control(Sleep(2) if move == "sleep" else Wake())
        for reader in readers:
            with pytest.raises(EngineDead, match=reason):
                await reader
        await until(lambda: not engine.is_alive)
        for action in (Wake(), Pause(), GetState()):
            with pytest.raises(EngineDead, match=reason):
                await engine.control(action)
        with pytest.raises(EngineDead, match=reason):
            await engine.submit([request("b", numbers(9))], "r")
        assert engine.executor.is_shut_down


@dies
async def test_a_pending_change_fails_when_the_engine_dies():
    gate = Gate()

    def fail(context):
        gate()
        return MemoryError("none left")

    async with running(failure=fail) as engine, asyncio.timeout(TIMEOUT_S):
        await engine.submit([request("a", numbers(9))], "r")
        await asyncio.to_thread(gate.reached.wait, TIMEOUT_S)
        waiting = [asyncio.ensure_future(engine.control(action)) for action in (Pause(), Sleep(1), Wake())]
        await asyncio.sleep(0)
        gate.opened.set()
        for change in waiting:
            with pytest.raises(EngineDead, match="MemoryError"):
                await change


async def test_a_change_that_is_cancelled_before_its_turn_does_not_happen():
    gate = Gate()
    async with running(failure=gate) as engine, asyncio.timeout(TIMEOUT_S):
        await engine.submit([request("a", numbers(9), 3)], "r")
        await asyncio.to_thread(gate.reached.wait, TIMEOUT_S)
        pausing = asyncio.ensure_future(engine.control(Pause()))
        await asyncio.sleep(0)
        pausing.cancel()
        await asyncio.wait([pausing])
        gate.opened.set()
        assert (await collect(engine, "r", 1))[1] == {"a": "length"}
        assert engine.stats.state == "running"


async def test_a_long_awakening_does_not_pass_for_silence():
    gate = Gate()
    async with running(limits=LivenessLimits(loop_heartbeat_s=0.01)) as engine, asyncio.timeout(TIMEOUT_S):
        engine.executor.restore = gate
        await engine.control(Sleep(2))
        waking = asyncio.ensure_future(engine.control(Wake()))
        await asyncio.to_thread(gate.reached.wait, TIMEOUT_S)
        await asyncio.sleep(0.05)
        assert (engine.stalled_s, engine.stats.state) == (0.0, "asleep")
        gate.opened.set()
        await waking
        assert engine.stats.state == "running"


async def test_routers_learn_which_blocks_a_sleep_has_cost():
    async with running() as engine, asyncio.timeout(TIMEOUT_S):
        await engine.submit([request("a", numbers(17), 1)], "r")
        stored = await first_message(engine, "r", lambda message: message.blocks_stored)
        reader = asyncio.create_task(first_message(engine, "r", lambda message: message.blocks_removed))
        await asyncio.sleep(0)
        await engine.control(Sleep(1))
        assert set((await reader).blocks_removed) == set(stored.blocks_stored)
