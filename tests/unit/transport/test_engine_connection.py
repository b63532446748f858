"""An engine server, and connections of routers to it."""

import asyncio
import contextlib
import socket
import struct
from dataclasses import replace

import pytest

from rayinfer.errors import EngineDead, InvalidParameter, RequestFailed
from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.liveness import LivenessLimits
from rayinfer.transport.engine_connection import EngineConnection
from rayinfer.transport.engine_messages import VERSION, RouterHello, Submit
from rayinfer.transport.engine_server import EngineServer
from rayinfer.wire import LENGTH_BYTES, encode
from support.fakes.fake_engine_client import FakeEngineClient
from support.services.async_engines import collect, request, running
from support.services.polling import until

HOST = "127.0.0.1"
SOON_S = 10.0


@contextlib.asynccontextmanager
async def listening(engine, **limits):
    server = EngineServer(engine, limits=LivenessLimits(**limits))
    try:
        yield await server.start(HOST)
    finally:
        await asyncio.wait_for(server.close(), SOON_S)


def connection(address, **changes):
    async def find():
        return replace(address, **changes)

    return EngineConnection(find)


class Relay:
    """Network between one router and an engine, which may cut the router off."""

    def __init__(self, address):
        self._target, self.has_closed = address, asyncio.Event()  # the router has

    @contextlib.asynccontextmanager
    async def running(self):
        server = await asyncio.start_server(self._accept, HOST, 0)
        yield replace(self._target, port=server.sockets[0].getsockname()[1])
        server.close()

    async def _accept(self, reader, writer):
        from_engine, self._to_engine = await asyncio.open_connection(HOST, self._target.port)
        backward = asyncio.ensure_future(forward(from_engine, writer))
        await forward(reader, self._to_engine)
        self.has_closed.set()
        backward.cancel()
        writer.close()
        self._to_engine.close()

    def cut(self):
        """Reset the connection, as when the router's process is killed."""
        linger = struct.pack("ii", 1, 0)
        self._to_engine.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._to_engine.transport.abort()


async def forward(reader, writer):
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(2**16):
            writer.write(data)


async def listener(engine, address):
    """A router that has received the engine's first message."""
    router = connection(address)
    messages = router.outputs("r")
    engine.say()
    await first(messages)
    return router, messages


async def first(messages):
    async with asyncio.timeout(SOON_S):
        return await anext(messages)


async def test_requests_are_submitted_and_tokens_returned():
    async with running() as engine, listening(engine) as address:
        router = connection(address)
        await router.submit([request("a/0", [1, 2]), request("b/0", [3])], "r")
        tokens, ends = await collect(router, "r", until=2)
    assert {name: len(each) for name, each in tokens.items()} == {"a/0": 4, "b/0": 4}
    assert ends == {"a/0": "length", "b/0": "length"}


async def test_each_router_gets_outputs_of_its_own_requests_only():
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
        await until(lambda: engine.aborted)
        assert engine.submitted_ids == ["a/0"]
        reading.cancel()


@pytest.mark.parametrize("way", ["closed", "vanished"])
async def test_a_router_that_goes_has_its_requests_aborted(way):
    engine = FakeEngineClient()
    async with listening(engine) as address, (relay := Relay(address)).running() as relayed:
        _, messages = await listener(engine, relayed)
        assert engine.is_listened_to
        if way == "closed":
            await messages.aclose()
        else:
            relay.cut()
        await until(lambda: not engine.is_listened_to)


async def test_the_cause_of_an_engines_death_is_reported():
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
    with pytest.raises(EngineDead, match="closed the connection"):
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


SPECS = [
    StructuredOutputsParams(json={"type": "object"}, disable_any_whitespace=True),
    StructuredOutputsParams(choice=["ä", "b"], reasoning_tags=("<think>", "</think>"), begins_in_reasoning=True),
]


async def test_grammars_are_compiled_beside_messages():
    engine = FakeEngineClient()
    async with listening(engine) as address:
        router, messages = await listener(engine, address)
        reading = asyncio.ensure_future(first(messages))
        for spec in SPECS:
            await asyncio.wait_for(router.compile_grammar(spec, "r"), SOON_S)
        assert engine.compiled == SPECS
        engine.grammar_may_compile.clear()
        compiling = asyncio.ensure_future(router.compile_grammar(SPECS[0], "r"))
        await until(lambda: len(engine.compiled) == 3)
        engine.say(engine.delta("a/0", [5]))
        assert (await reading).deltas[0].token_ids == [5]  # it waits for no grammar
        engine.grammar_may_compile.set()
        reading = asyncio.ensure_future(first(messages))
        await asyncio.wait_for(compiling, SOON_S)
        reading.cancel()


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (
            InvalidParameter("too much (limit step_max_items: 20000)", "structured_outputs"),
            InvalidParameter,
            "step_max",
        ),
        (ZeroDivisionError("inner details"), RequestFailed, "failed to compile a grammar: ZeroDivisionError"),
    ],
)
async def test_a_refused_grammar_harms_nothing_else(error, raised, message):
    engine = FakeEngineClient()
    engine.grammar_error = error
    async with listening(engine) as address:
        router, messages = await listener(engine, address)
        reading = asyncio.ensure_future(first(messages))
        with pytest.raises(raised, match=message):
            await asyncio.wait_for(router.compile_grammar(SPECS[0], "r"), SOON_S)
        engine.say(engine.delta("a/0", [5]))
        assert (await reading).deltas[0].token_ids == [5]


async def test_an_engine_that_ends_ends_its_compilations():
    engine = FakeEngineClient()
    engine.grammar_may_compile.clear()
    async with listening(engine) as address:
        router, messages = await listener(engine, address)
        reading = asyncio.ensure_future(first(messages))
        compiling = asyncio.ensure_future(router.compile_grammar(SPECS[0], "r"))
        await until(lambda: engine.compiled)
    for waiting in (reading, compiling):
        with pytest.raises(EngineDead):
            await asyncio.wait_for(waiting, SOON_S)


async def test_an_engine_that_is_not_there_cannot_be_reached():
    engine = FakeEngineClient()
    async with listening(engine) as address:
        pass
    router = connection(address)
    for attempt in (router.submit([request("a/0", [1])], "r"), first(router.outputs("r"))):
        with pytest.raises(EngineDead, match=f"cannot be reached at {HOST}:{address.port}"):
            await attempt


async def test_an_abort_before_any_request_opens_no_connection():
    await connection(None).abort(["a/0"])


async def test_a_client_with_another_key_is_rejected(caplog):
    engine = FakeEngineClient()
    async with listening(engine) as address:
        stranger = connection(address, key=bytes(32))
        await stranger.submit([request("a/0", [1])], "r")
        with pytest.raises(EngineDead):
            await first(stranger.outputs("r"))
        assert not engine.submitted
        assert not engine.is_listened_to
    assert "without the key is rejected" in caplog.text
    assert repr(address.key) not in repr(address)


async def test_a_router_of_another_version_is_refused_with_the_version():
    engine = FakeEngineClient()
    async with listening(engine) as address:
        reader, writer = await asyncio.open_connection(HOST, address.port)
        writer.write(encode(RouterHello(VERSION + 1, address.key, "r")))
        answer = await asyncio.wait_for(reader.read(), SOON_S)
        writer.close()
    assert f"version {VERSION}".encode() in answer


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        (1 << 20).to_bytes(LENGTH_BYTES, "big"),
        b"\x00\x00\x00\x01\xc1",
        encode(Submit([request("a/0", [1])])),
        b"\x00\x00",
    ],
)
async def test_unauthenticated_clients_are_disconnected_and_disturb_no_router(sent):
    engine = FakeEngineClient()
    async with listening(engine, server_hello_timeout_s=0.2) as address:
        router = connection(address)
        messages = router.outputs("r")
        reader, writer = await asyncio.open_connection(HOST, address.port)
        writer.write(sent)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), SOON_S) == b""
        writer.close()
        engine.say(engine.delta("a/0", [5]))
        assert (await first(messages)).deltas[0].token_ids == [5]
    assert not engine.submitted


async def test_a_router_that_reads_nothing_delays_no_other():
    async with running() as engine, listening(engine) as address:

        async def find():
            return address

        _, writer = await asyncio.open_connection(HOST, address.port, limit=1)  # and is never read
        writer.write(encode(RouterHello(VERSION, address.key, "slow")))
        requests = [request(f"slow/{number}", [1], max_tokens=2000) for number in range(8)]
        writer.write(encode(Submit(requests)))
        router = EngineConnection(find)
        await router.submit([request("a/0", [1])], "quick")
        _, ends = await collect(router, "quick", until=1)
        writer.close()
    assert ends == {"a/0": "length"}


async def test_a_router_whose_machine_acknowledges_nothing_is_disconnected():
    engine = FakeEngineClient()
    async with listening(engine, router_timeout_s=0.5) as address:
        _, writer = await asyncio.open_connection(HOST, address.port, limit=1)  # and is never read
        writer.write(encode(RouterHello(VERSION, address.key, "r")))
        await until(lambda: engine.is_listened_to)
        for _ in range(40):  # more than the system keeps for it
            engine.say(blocks_stored=[bytes(1 << 20)])
        await until(lambda: not engine.is_listened_to)
        writer.close()


async def test_a_connection_that_is_closed_while_it_opens_sends_nothing():
    engine = FakeEngineClient()
    async with listening(engine) as address, (relay := Relay(address)).running() as relayed:
        may_answer = asyncio.Event()

        async def find():
            await may_answer.wait()
            return relayed

        router = EngineConnection(find)
        messages = router.outputs("r")
        reading = asyncio.ensure_future(first(messages))
        submitting = asyncio.ensure_future(router.submit([request("a/0", [1])], "r"))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait((reading,))
        may_answer.set()
        with pytest.raises(EngineDead, match="has ended"):
            await asyncio.wait_for(submitting, SOON_S)
        await asyncio.wait_for(relay.has_closed.wait(), SOON_S)
        assert not engine.submitted


async def test_an_engine_whose_address_cannot_be_found_is_dead():
    async def find():
        raise RuntimeError("the node is gone")

    router = EngineConnection(find)
    for attempt in (router.submit([request("a/0", [1])], "r"), first(router.outputs("r"))):
        with pytest.raises(EngineDead, match="the node is gone"):
            await attempt


async def test_outputs_that_cannot_be_encoded_end_the_connection(caplog):
    engine = FakeEngineClient()
    async with listening(engine) as address:
        messages = connection(address).outputs("r")
        engine.say(blocks_stored=[object()])
        with pytest.raises(EngineDead, match="closed the connection"):
            await first(messages)
        await until(lambda: "could not be sent" in caplog.text)


async def test_routers_get_an_engines_final_message_before_its_server_closes():
    engine = FakeEngineClient()
    server = EngineServer(engine)
    messages = connection(await server.start(HOST)).outputs("r")
    engine.say()
    await first(messages)
    engine.say(engine.delta("a/0", [5]))
    engine.die(EngineDead("it was stopped"))
    await asyncio.wait_for(server.close(SOON_S), SOON_S)
    assert (await first(messages)).deltas[0].token_ids == [5]
    with pytest.raises(EngineDead, match="it was stopped"):
        await first(messages)
