import asyncio
import contextlib
import json
import resource

import pytest
import uvloop

from rayinfer_deployments.app_args import llm_app_args
from rayinfer_deployments.router.connection_limits import FILES_FOR_OTHERS, ConnectionLimits, ConnectionTable, Phase
from rayinfer_deployments.router.http_server import HttpServer
from rayinfer_deployments.router.tls import ReloadedTls
from support.kernels.memory_use import held_bytes
from support.services.certificates import make_certificate, trusting
from support.services.free_ports import free_port

CEILING_S = 5.0  # less than the time for a head
HEAD = b"GET /%b HTTP/1.1\r\nhost: a\r\n\r\n"


class FakeConnection:
    def __init__(self, table, address="a", phase=Phase.IDLE):
        self.is_evicted = False
        self.is_admitted = table.add(self, address)
        if self.is_admitted:
            table.enter(self, phase)

    def evict(self):
        self.is_evicted = True


def evicted(connections):
    return [number for number, connection in enumerate(connections) if connection.is_evicted]


def test_the_oldest_idle_connection_makes_room_before_an_unfinished_request():
    table = ConnectionTable(ConnectionLimits(max_connections=3))
    connections = [FakeConnection(table, phase=phase) for phase in (Phase.RECEIVING, Phase.IDLE, Phase.IDLE)]
    for expected in ([1], [1, 2], [1, 2, 3]):
        connections.append(FakeConnection(table))
        assert evicted(connections) == expected
    assert all(connection.is_admitted for connection in connections)


def test_a_connection_that_was_used_since_is_younger():
    table = ConnectionTable(ConnectionLimits(max_connections=2))
    connections = [FakeConnection(table), FakeConnection(table)]
    for phase in (Phase.RECEIVING, Phase.RESPONDING, Phase.IDLE):
        table.enter(connections[0], phase)
    FakeConnection(table)
    assert evicted(connections) == [1]


def test_the_oldest_unfinished_request_makes_room_where_nothing_is_idle_and_an_answer_never():
    table = ConnectionTable(ConnectionLimits(max_connections=2))
    connections = [FakeConnection(table, phase=phase) for phase in (Phase.RESPONDING, Phase.RECEIVING)]
    assert FakeConnection(table, phase=Phase.RESPONDING).is_admitted
    assert evicted(connections) == [1]
    table.remove(connections[1])
    assert not FakeConnection(table).is_admitted
    assert evicted(connections) == [1]


def test_an_address_loses_its_own_connections_only():
    table = ConnectionTable(ConnectionLimits(max_connections_per_address=2))
    connections = [FakeConnection(table, address) for address in "baa"]
    FakeConnection(table, "a")
    assert evicted(connections) == [1]
    table.enter(connections[2], Phase.RESPONDING)
    table.remove(connections[1])
    newcomers = [FakeConnection(table, "a", Phase.RESPONDING), FakeConnection(table, "b")]
    assert [newcomer.is_admitted for newcomer in newcomers] == [True, True]
    assert not FakeConnection(table, "a").is_admitted


@pytest.mark.parametrize(
    ("limits", "phase"),
    [
        (ConnectionLimits(max_idle_connections=2), Phase.IDLE),
        (ConnectionLimits(max_unfinished_requests=2), Phase.RECEIVING),
    ],
)
def test_idle_connections_and_unfinished_requests_have_limits_of_their_own(limits, phase):
    table = ConnectionTable(limits)
    connections = [FakeConnection(table, phase=phase) for _ in range(4)]
    assert evicted(connections) == [0, 1]


def test_connections_that_are_gone_leave_nothing_behind():
    table = ConnectionTable(ConnectionLimits(max_connections=1))
    held = []
    for number in range(500):
        connection = FakeConnection(table, str(number), Phase.RESPONDING)
        assert connection.is_admitted
        table.remove(connection)
        table.remove(connection)
        table.enter(connection, Phase.IDLE)
        held.append(held_bytes(table))
    assert held[-1] == held[0]


def test_no_more_connections_are_kept_than_the_process_may_open_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_FOR_OTHERS + 2, hard))
    try:
        table = ConnectionTable(ConnectionLimits())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    connections = [FakeConnection(table) for _ in range(3)]
    assert evicted(connections) == [0]


def test_the_settings_of_an_application_reach_its_routers():
    args = llm_app_args({"models": [{"model": "x"}], "max_connections": 7, "max_unfinished_requests": 3})
    assert args.connection_limits() == ConnectionLimits(max_connections=7, max_unfinished_requests=3)


async def application(scope, receive, send):
    """Answer at once, or for as long as the client stays."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    if scope["path"] == "/endless":
        await send({"type": "http.response.body", "body": b"o", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def listening(limits, tls=None):
    port = free_port()
    server = HttpServer(application, "127.0.0.1", port, limits=limits, tls=tls)
    streams = []

    async def connect(payload=b"", expected=b"", **encryption):
        streams.append(await asyncio.open_connection("127.0.0.1", port, **encryption))
        reader, writer = streams[-1]
        writer.write(payload)
        if expected:
            await asyncio.wait_for(reader.readuntil(expected), CEILING_S)
        else:
            await asyncio.sleep(0.02)  # the service takes it in
        return reader, writer

    try:
        yield connect
    finally:
        for _, writer in streams:
            writer.close()
        await server.close(grace_s=0.0)


async def is_open(stream):
    """Send another request; returns whether it is answered."""
    reader, writer = stream
    with contextlib.suppress(ConnectionError):
        writer.write(HEAD % b"")
        return b"200 OK" in await asyncio.wait_for(reader.read(1000), CEILING_S)
    return False


async def test_the_port_closes_the_connection_that_was_idle_longest():
    async with listening(ConnectionLimits(max_idle_connections=2)) as connect:
        streams = [await connect(HEAD % b"", b"ok") for _ in range(3)]
        assert [await is_open(stream) for stream in streams] == [False, True, True]


@pytest.mark.parametrize(
    "half", [b"GET / HTTP/1.1\r\nhost:", b"POST /endless HTTP/1.1\r\ncontent-length: 9\r\n\r\nhalf"]
)
async def test_the_port_gives_up_the_oldest_half_sent_request(half):
    async with listening(ConnectionLimits(max_unfinished_requests=2)) as connect:
        streams = [await connect(half) for _ in range(3)]
        await asyncio.wait_for(streams[0][0].read(), CEILING_S)  # to its end
        assert not any(reader.at_eof() for reader, _ in streams[1:])


async def test_the_port_refuses_newcomers_while_every_connection_is_answering():
    async with listening(ConnectionLimits(max_connections_per_address=2)) as connect:
        answering = [await connect(HEAD % b"endless", b"\r\n\r\n") for _ in range(2)]
        reader, _ = await connect()
        head, _, body = (await asyncio.wait_for(reader.read(), CEILING_S)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert json.loads(body)["error"]["code"] == "unavailable"
        assert not any(reader.at_eof() for reader, _ in answering)
        answering[0][1].close()
        await asyncio.sleep(0.05)
        await connect(HEAD % b"", b"ok")


def ends_of(streams):
    return sum(reader.at_eof() or reader.exception() is not None for reader, _ in streams)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_connections_in_their_tls_handshake_are_within_the_limits(tmp_path, new_loop):
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(check_the_limits_of_handshakes(tmp_path))


async def check_the_limits_of_handshakes(tmp_path):
    files = make_certificate(tmp_path, "server")
    encryption = {"ssl": trusting(files)}
    limits = ConnectionLimits(max_connections=8, max_connections_per_address=6, max_unfinished_requests=4)
    async with listening(limits, ReloadedTls(files)) as connect:
        answering = await connect(HEAD % b"endless", b"\r\n\r\n", **encryption)
        silent = [await connect() for _ in range(20)]
        async with asyncio.timeout(CEILING_S):
            while ends_of(silent) < 16:  # noqa: ASYNC110 - streams have no event for it
                await asyncio.sleep(0.02)
        assert ends_of(silent[-4:]) == 0
        await connect(HEAD % b"", b"ok", **encryption)
        assert ends_of(silent) == 17  # it took the slot of another handshake
        assert ends_of([answering]) == 0


async def test_a_handshake_that_is_over_leaves_its_slot(tmp_path):
    files = make_certificate(tmp_path, "server")
    async with listening(ConnectionLimits(max_connections_per_address=2), ReloadedTls(files)) as connect:
        answering = await connect(HEAD % b"endless", b"\r\n\r\n", ssl=trusting(files))
        for _ in range(3):
            _, writer = await connect(b"no TLS\r\n\r\n")
            writer.close()
        for _ in range(3):
            _, writer = await connect(HEAD % b"", b"ok", ssl=trusting(files))
            writer.close()
        assert ends_of([answering]) == 0


async def test_a_handshake_is_refused_while_every_connection_is_answering(tmp_path):
    files = make_certificate(tmp_path, "server")
    async with listening(ConnectionLimits(max_connections=2), ReloadedTls(files)) as connect:
        answering = [await connect(HEAD % b"endless", b"\r\n\r\n", ssl=trusting(files)) for _ in range(2)]
        with pytest.raises(OSError):
            await connect(HEAD % b"", b"ok", ssl=trusting(files))
        assert ends_of(answering) == 0
        answering[0][1].close()
        await asyncio.sleep(0.1)
        await connect(HEAD % b"", b"ok", ssl=trusting(files))  # what was refused takes no slot
