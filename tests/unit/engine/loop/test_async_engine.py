"""Asynchronous engine: routing of deltas, and what is freed when a router disconnects or the engine dies."""

import asyncio
from contextlib import aclosing

import pytest

from rayinfer.errors import EngineDead
from rayinfer.liveness import LivenessLimits
from support.fakes.fake_executor import expected_tokens, numbers
from support.services.async_engines import ENDLESS, TIMEOUT_S, collect, request, running
from support.services.polling import until


async def test_every_router_gets_its_own_requests_and_no_others():
    async with running() as engine:
        for router in range(3):
            await engine.submit(
                [request(f"{router}-{i}", numbers(9, 3 * router + i), 12) for i in range(3)], str(router)
            )
        answers = await asyncio.gather(*(collect(engine, str(router), 3) for router in range(3)))
        for router, (tokens, ends) in enumerate(answers):
            wanted = {f"{router}-{i}": expected_tokens(numbers(9, 3 * router + i), 12) for i in range(3)}
            assert tokens == wanted
            assert ends == dict.fromkeys(wanted, "length")


async def test_a_router_that_submits_before_it_listens_loses_nothing():
    async with running() as engine:
        await engine.submit([request("a", numbers(9), 5)], "r")
        await until(lambda: engine.stats.requests_finished_total.get("length"))
        tokens, ends = await collect(engine, "r", 1)
        assert (tokens, ends) == ({"a": expected_tokens(numbers(9), 5)}, {"a": "length"})


async def test_a_router_that_submits_and_never_listens_is_taken_for_gone():
    async with running(
        num_blocks=4000, limits=LivenessLimits(loop_heartbeat_s=0.02, subscribe_timeout_s=0.05)
    ) as engine:
        reader = asyncio.create_task(collect(engine, "listens", 1))
        await asyncio.sleep(0)
        await engine.submit([request("a", numbers(9), ENDLESS)], "gone")
        await until(lambda: engine.stats.requests_finished_total == {"abort": 1})
        assert engine.stats.kv_blocks_used == 0
        await engine.submit([request("b", numbers(9), 3)], "listens")
        assert (await reader)[1] == {"b": "length"}


async def test_a_slow_reader_gets_merged_messages_with_nothing_lost():
    async with running(num_blocks=64) as engine:
        await engine.submit([request(f"r{i}", numbers(9, i), 100) for i in range(3)], "slow")
        tokens, num_messages, num_ended = {}, 0, 0
        async with asyncio.timeout(TIMEOUT_S), aclosing(engine.outputs("slow")) as messages:
            async for message in messages:
                num_messages += bool(message.deltas)
                for delta in message.deltas:
                    known = tokens.setdefault(delta.request_id, [])
                    assert delta.start_pos == len(known)
                    known += delta.token_ids
                    num_ended += delta.finish_reason is not None
                if num_ended == 3:
                    break
                await until(lambda: engine.num_unfinished == 0)
        assert tokens == {f"r{i}": expected_tokens(numbers(9, i), 100) for i in range(3)}
        assert num_messages <= 2


async def test_a_refused_request_comes_back_as_an_error_and_the_others_run():
    async with running() as engine:
        await engine.submit([request("good", numbers(9)), request("bad", []), request("good too", numbers(8))], "r")
        tokens, ends = await collect(engine, "r", 3)
        assert ends == {"good": "length", "bad": "error", "good too": "length"}
        assert tokens["good"] == expected_tokens(numbers(9), 4)


@pytest.mark.parametrize("is_traced", [True, False])
async def test_a_refusal_has_a_trace_if_it_is_to_have_one(is_traced):
    async with running() as engine, aclosing(engine.outputs("r")) as messages:
        await engine.submit([request("bad", [], trace=is_traced)], "r")
        async with asyncio.timeout(TIMEOUT_S):
            ends = [delta async for message in first_with_deltas(messages) for delta in message.deltas]
        events = ends[0].trace
        assert [event.name for event in events or []] == is_traced * ["finished"]
        assert (events is None) == (not is_traced)


async def first_with_deltas(messages):
    async for message in messages:
        if message.deltas:
            yield message
            return


async def test_an_abort_ends_a_request_and_unknown_ids_are_ignored():
    async with running(num_blocks=4000) as engine:
        await engine.submit([request("a", numbers(9), ENDLESS), request("b", numbers(9, 1), 3)], "r")
        await engine.abort(["nobody", "a", "nobody else"])
        tokens, ends = await collect(engine, "r", 2)
        assert ends == {"a": "abort", "b": "length"}
        assert tokens["b"] == expected_tokens(numbers(9, 1), 3)
        await engine.abort(["a", "b"])  # over
        await until(lambda: engine.stats.kv_blocks_used == 0)


async def test_closing_outputs_ends_that_routers_requests_and_no_others():
    async with running(num_blocks=4000) as engine:
        await engine.submit([request(f"leaves {i}", numbers(9, i), ENDLESS) for i in range(3)], "leaves")
        await engine.submit([request("stays", numbers(9, 5), 40)], "stays")
        async with aclosing(engine.outputs("leaves")) as messages:
            async for message in messages:
                if message.deltas:
                    break
        tokens, ends = await collect(engine, "stays", 1)
        assert (tokens, ends) == ({"stays": expected_tokens(numbers(9, 5), 40)}, {"stays": "length"})
        await until(lambda: engine.num_unfinished == 0)
        assert engine.stats.kv_blocks_used == 0
        assert engine.stats.requests_finished_total == {"abort": 3, "length": 1}


async def test_a_router_that_comes_back_at_once_starts_afresh():
    async with running(num_blocks=4000) as engine:
        for attempt in range(20):
            await engine.submit([request(f"old {attempt}", numbers(9), ENDLESS)], "r")
            messages = engine.outputs("r")
            await anext(messages)
            await messages.aclose()
            await engine.submit([request(f"new {attempt}", numbers(9, 1), 3)], "r")
            tokens, ends = await collect(engine, "r", 1)
            assert tokens == {f"new {attempt}": expected_tokens(numbers(9, 1), 3)}
            assert ends == {f"new {attempt}": "length"}
        await until(lambda: engine.stats.kv_blocks_used == 0)


async def test_an_idle_engine_goes_on_telling_its_state():
    async with running(limits=LivenessLimits(loop_heartbeat_s=0.01)) as engine, asyncio.timeout(TIMEOUT_S):
        async with aclosing(engine.outputs("r")) as messages:
            beats = [await anext(messages) for _ in range(3)]
        assert all(not beat.deltas and beat.stats.kv_blocks_total == 32 for beat in beats)
        assert engine.stalled_s < 5


async def test_messages_carry_the_blocks_that_came_and_went():
    async with running() as engine, asyncio.timeout(TIMEOUT_S):
        await engine.submit([request("a", numbers(17), 1)], "r")
        stored = []
        async with aclosing(engine.outputs("r")) as messages:
            async for message in messages:
                stored += message.blocks_stored
                if any(delta.finish_reason for delta in message.deltas):
                    break
        assert len(stored) == len(set(stored)) == 4


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_dead_engine_fails_every_router_now_and_later():
    async with running(failure=lambda context: MemoryError("none left")) as engine, asyncio.timeout(TIMEOUT_S):
        readers = [asyncio.create_task(collect(engine, router, 1)) for router in ("r", "other")]
        await asyncio.sleep(0)
        await engine.submit([request("a", numbers(9))], "r")
        for reader in readers:
            with pytest.raises(EngineDead, match="MemoryError"):
                await reader
        await until(lambda: not engine.is_alive)
        assert isinstance(engine.failure, MemoryError)
        with pytest.raises(EngineDead):
            await engine.submit([request("b", numbers(9))], "r")
        with pytest.raises(EngineDead):
            await collect(engine, "latecomer", 1)
        await engine.abort(["a"])
        assert engine.executor.is_shut_down


async def test_an_engine_whose_steps_all_fail_is_dead_and_blames_no_request():
    async with running(failure=lambda context: RuntimeError("a broken kernel")) as engine:
        await engine.submit([request("a", numbers(9))], "r")
        with pytest.raises(EngineDead, match="whatever they compute"):
            await collect(engine, "r", 1)


@pytest.mark.parametrize("num_guilty", [1, 3])
async def test_guilty_requests_that_are_alone_end_with_error_and_the_engine_goes_on(num_guilty):
    async with running(failure=lambda context: RuntimeError("no") if len(context) > 8 else None) as engine:
        await engine.submit([request(f"bad {i}", numbers(9, i)) for i in range(num_guilty)], "r")
        _, ends = await collect(engine, "r", num_guilty)
        assert ends == {f"bad {i}": "error" for i in range(num_guilty)}
        await engine.submit([request("good", numbers(4))], "r")
        assert await collect(engine, "r", 1) == ({"good": expected_tokens(numbers(4), 4)}, {"good": "length"})
        assert engine.stats.kv_blocks_used == 0


async def test_shutdown_ends_requests_streams_and_the_thread():
    async with running(num_blocks=4000) as engine:
        assert engine.is_alive
        await engine.submit([request("a", numbers(9), ENDLESS)], "r")
        reader = asyncio.create_task(collect(engine, "r", 1))
        await until(lambda: engine.stats.num_running)
        await asyncio.wait_for(engine.shutdown(), TIMEOUT_S)
        tokens, ends = await reader
        assert ends == {}  # a router may go on with it on another engine
        assert tokens["a"] == expected_tokens(numbers(9), len(tokens["a"]))
        assert not engine.is_alive
        assert engine.executor.is_shut_down
        assert engine.stats.kv_blocks_used == 0
        with pytest.raises(EngineDead, match="shut down"):
            await engine.submit([request("b", numbers(9))], "r")
        async with asyncio.timeout(TIMEOUT_S):
            assert [message async for message in engine.outputs("latecomer")] == []


async def test_an_idle_engine_whose_executor_dies_is_over_within_a_heartbeat():
    async with running() as engine:
        engine.executor.death = EngineDead("rank 1 is lost")
        await until(lambda: not engine.is_alive)
        with pytest.raises(EngineDead, match="rank 1 is lost"):
            await engine.submit([request("a", numbers(9))], "r")


async def test_every_stream_is_whole_with_two_steps_in_flight():
    async with running(max_concurrent_batches=2) as engine:
        await engine.submit([request(f"{i}", numbers(9, i), 12) for i in range(5)], "r")
        tokens, ends = await collect(engine, "r", 5)
        assert tokens == {f"{i}": expected_tokens(numbers(9, i), 12) for i in range(5)}
        assert set(ends.values()) == {"length"}
