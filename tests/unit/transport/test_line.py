"""An engine on one end of a line and routers on the others."""

import asyncio
import contextlib
import socket
import struct
from dataclasses import replace

import pytest

from rayinfer.errors import EngineDead
from rayinfer.transport import engine_server
from rayinfer.transport.engine_connection import EngineConnection
from rayinfer.transport.engine_server import EngineServer
from rayinfer.transport.frames import LENGTH_BYTES, VERSION, HelloFrame, SubmitFrame, encode_frame
from support.fakes.fake_engine_client import FakeEngineClient
from support.services.async_engines import collect, request, running, wait_until

HOST = "127.0.0.1"
PATIENCE_S = 10.0


@contextlib.asynccontextmanager
async def listening(engine):
    server = EngineServer(engine)
    try:
        yield await server.start(HOST)
    finally:
        await asyncio.wait_for(server.close(), PATIENCE_S)


def connection(address, **changes):
    async def find():
        return replace(address, **changes)

    return EngineConnection(find)


async def listener(engine, address):
    """A router that has heard the engine's first message."""
    router = connection(address)
    messages = router.outputs("r")
    engine.say()
    await first(messages)
    return router, messages


async def first(messages):
    async with asyncio.timeout(PATIENCE_S):
        return await anext(messages)


async def test_requests_go_one_way_and_tokens_come_the_other():
    async with running() as engine, listening(engine) as address:
        router = connection(address)
        await router.submit([request("a/0", [1, 2]), request("b/0", [3])], "r")
        tokens, ends = await collect(router, "r", until=2)
    assert {name: len(each) for name, each in tokens.items()} == {"a/0": 4, "b/0": 4}
    assert ends == {"a/0": "length", "b/0": "length"}


async def test_each_router_hears_of_its_own_requests_only():
    async with running() as engine, listening(engine) as address:
        one, other = connection(address), connection(address)
        await one.submit([request("a/0", [1])], "one")
        await other.submit([request("b/0", [1])], "other")
        (tokens, _), (others, _) = await asyncio.gather(collect(one, "one", until=1), collect(other, "other", until=1))
    assert (set(tokens), set(others)) == ({"a/0"}, {"b/0"})


async def test_an_abort_never_overtakes_its_request():
    engine = FakeEngineClient()
    engine.submit_may_arrive.clear()
    async with listening(engine) as address:
        router = connection(address)
        messages = router.outputs("r")
        reading = asyncio.ensure_future(first(messages))
        await router.submit([request("a/0", [1])], "r")
        await router.abort(["a/0"])
        engine.submit_may_arrive.set()
        await wait_until(lambda: engine.aborted)
        assert engine.submitted_ids == ["a/0"]
        reading.cancel()


@pytest.mark.parametrize("way", ["closed", "vanished"])
async def test_a_router_that_goes_has_its_requests_aborted(way):
    engine = FakeEngineClient()
    async with listening(engine) as address:
        router, messages = await listener(engine, address)
        assert engine.is_listened_to
        if way == "closed":
            await messages.aclose()
        else:  # as when its process is killed
            _, writer = await router._opening
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        await wait_until(lambda: not engine.is_listened_to)


async def test_why_an_engine_has_died_is_told():
    engine = FakeEngineClient()
    async with listening(engine) as address:
        messages = connection(address).outputs("r")
        engine.die(EngineDead("it ran out of luck"))
        with pytest.raises(EngineDead, match="it ran out of luck"):
            await first(messages)


async def test_an_engine_whose_process_ends_is_dead():
    engine = FakeEngineClient()
    async with listening(engine) as address:
        router, messages = await listener(engine, address)
    with pytest.raises(EngineDead, match="hung up"):
        await first(messages)
    with pytest.raises(EngineDead, match="has ended"):
        await router.submit([request("a/0", [1])], "r")


async def test_an_engine_that_is_shut_down_ends_its_outputs():
    async with running() as engine, listening(engine) as address:
        messages = connection(address).outputs("r")
        await first(messages)
        await engine.shutdown()
        left = [message async for message in messages]
    assert len(left) < 10


async def test_an_engine_that_is_not_there_cannot_be_reached():
    engine = FakeEngineClient()
    async with listening(engine) as address:
        pass
    router = connection(address)
    for attempt in (router.submit([request("a/0", [1])], "r"), first(router.outputs("r"))):
        with pytest.raises(EngineDead, match=f"cannot be reached at {HOST}:{address.port}"):
            await attempt


async def test_an_abort_before_anything_was_said_needs_no_line():
    await connection(None).abort(["a/0"])


async def test_another_key_opens_nothing(caplog):
    engine = FakeEngineClient()
    async with listening(engine) as address:
        stranger = connection(address, key=bytes(32))
        await stranger.submit([request("a/0", [1])], "r")
        with pytest.raises(EngineDead):
            await first(stranger.outputs("r"))
        assert not engine.submitted
        assert not engine.is_listened_to
    assert "without the key" in caplog.text
    assert repr(address.key) not in repr(address)


async def test_a_router_of_another_version_is_told_so(monkeypatch):
    engine = FakeEngineClient()
    async with listening(engine) as address:
        reader, writer = await asyncio.open_connection(HOST, address.port)
        writer.write(encode_frame(HelloFrame(VERSION + 1, address.key, "r")))
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
        writer.close()
    assert f"version {VERSION}".encode() in answer


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        (1 << 20).to_bytes(LENGTH_BYTES, "big"),
        b"\x00\x00\x00\x01\xc1",
        encode_frame(SubmitFrame([request("a/0", [1])])),
        b"\x00\x00",
    ],
)
async def test_strangers_are_hung_up_on_and_others_do_not_notice(said, monkeypatch):
    monkeypatch.setattr(engine_server, "HELLO_WITHIN_S", 0.2)
    engine = FakeEngineClient()
    async with listening(engine) as address:
        router = connection(address)
        messages = router.outputs("r")
        reader, writer = await asyncio.open_connection(HOST, address.port)
        writer.write(said)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        writer.close()
        engine.say(engine.delta("a/0", [5]))
        assert (await first(messages)).deltas[0].token_ids == [5]
    assert not engine.submitted


async def test_a_router_that_reads_nothing_keeps_nobody_waiting():
    async with running() as engine, listening(engine) as address:

        async def find():
            return address

        _, writer = await asyncio.open_connection(HOST, address.port, limit=1)  # and is never read
        writer.write(encode_frame(HelloFrame(VERSION, address.key, "slow")))
        requests = [request(f"slow/{number}", [1], max_tokens=2000) for number in range(8)]
        writer.write(encode_frame(SubmitFrame(requests)))
        router = EngineConnection(find)
        await router.submit([request("a/0", [1])], "quick")
        _, ends = await collect(router, "quick", until=1)
        writer.close()
    assert ends == {"a/0": "length"}


async def test_a_router_whose_machine_takes_nothing_any_more_is_given_up(monkeypatch):
    monkeypatch.setattr(engine_server, "GONE_AFTER_S", 0.5)
    engine = FakeEngineClient()
    async with listening(engine) as address:
        _, writer = await asyncio.open_connection(HOST, address.port, limit=1)  # and is never read
        writer.write(encode_frame(HelloFrame(VERSION, address.key, "r")))
        await wait_until(lambda: engine.is_listened_to)
        for _ in range(40):  # more than the system keeps for it
            engine.say(blocks_stored=[bytes(1 << 20)])
        await wait_until(lambda: not engine.is_listened_to)
        writer.close()


async def test_a_line_that_nobody_wants_any_more_when_it_opens_carries_nothing():
    engine = FakeEngineClient()
    async with listening(engine) as address:
        may_answer = asyncio.Event()

        async def find():
            await may_answer.wait()
            return address

        router = EngineConnection(find)
        messages = router.outputs("r")
        reading = asyncio.ensure_future(first(messages))
        submitting = asyncio.ensure_future(router.submit([request("a/0", [1])], "r"))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait((reading,))
        may_answer.set()
        with pytest.raises(EngineDead, match="has ended"):
            await asyncio.wait_for(submitting, PATIENCE_S)
        _, writer = await router._opening
        await asyncio.wait_for(writer.wait_closed(), PATIENCE_S)
        assert not engine.submitted


async def test_an_engine_that_nobody_can_find_is_dead_whatever_the_reason():
    async def find():
        raise RuntimeError("the node is gone")

    router = EngineConnection(find)
    for attempt in (router.submit([request("a/0", [1])], "r"), first(router.outputs("r"))):
        with pytest.raises(EngineDead, match="the node is gone"):
            await attempt


async def test_what_cannot_be_said_ends_the_line(caplog):
    engine = FakeEngineClient()
    async with listening(engine) as address:
        messages = connection(address).outputs("r")
        engine.say(blocks_stored=[object()])
        with pytest.raises(EngineDead, match="hung up"):
            await first(messages)
        await wait_until(lambda: "could not be sent" in caplog.text)


async def test_routers_hear_the_last_word_of_an_engine_before_its_server_hangs_up():
    engine = FakeEngineClient()
    server = EngineServer(engine)
    messages = connection(await server.start(HOST)).outputs("r")
    engine.say()
    await first(messages)
    engine.say(engine.delta("a/0", [5]))
    engine.die(EngineDead("it was told to end"))
    await asyncio.wait_for(server.close(PATIENCE_S), PATIENCE_S)
    assert (await first(messages)).deltas[0].token_ids == [5]
    with pytest.raises(EngineDead, match="told to end"):
        await first(messages)
