"""Connections in their TLS handshake, and those that end: what a client leaves undone keeps no slot."""

import asyncio
import contextlib
import errno
import select
import socket
import ssl

import pytest
import uvloop

from rayinfer_deployments.router.connection_limits import ConnectionLimits
from rayinfer_deployments.router.http_connection import HttpConnection
from rayinfer_deployments.router.http_server import HttpServer
from rayinfer_deployments.router.tls import ReloadedTls
from support.services.certificates import make_certificate, trusting
from support.services.free_ports import free_port

CEILING_S = 5.0
REQUEST = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
PIPELINED = 150
BODY = b"x" * 20_000


class QuickConnection(HttpConnection):
    stalled_s = head_timeout_s = 0.3


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request):
    def run_in_loop(main):
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main)

    return run_in_loop


@pytest.fixture
def files(tmp_path):
    return make_certificate(tmp_path, "server")


async def application(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(BODY))]})
    await send({"type": "http.response.body", "body": BODY})


@contextlib.asynccontextmanager
async def serving(tls=None, limits=None, **options):
    port = free_port()
    server = HttpServer(application, "127.0.0.1", port, tls=tls, limits=limits or ConnectionLimits(), **options)
    await asyncio.sleep(0.05)
    try:
        yield server, port
    finally:
        await server.close(grace_s=0.0)


async def answer(port, context=None):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(REQUEST)
    try:
        return await asyncio.wait_for(reader.read(), CEILING_S)
    finally:
        writer.close()


def has_ended(connection):
    """Whether the server has closed a connection of which nothing was read."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


async def ended_of(connections, number):
    """Wait until at least so many connections are closed; returns how many are."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CEILING_S):
            while sum(map(has_ended, connections)) < number:  # noqa: ASYNC110 - sockets have no event for it
                await asyncio.sleep(0.02)
    return sum(map(has_ended, connections))


async def unread_responses(port):
    """Ask for more than the system keeps for a client that does not read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.setblocking(False)
    for _ in range(PIPELINED):
        client.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await asyncio.sleep(0.001)
    return client


async def wait_for_connections(server, number):
    """Wait until the server counts so many connections."""
    async with asyncio.timeout(CEILING_S):
        while server.num_connections != number:  # noqa: ASYNC110 - it has no event for it
            await asyncio.sleep(0.02)


def test_clients_that_read_nothing_lose_their_connections_to_others_at_once(files, run):
    async def main():
        async with serving(ReloadedTls(files), ConnectionLimits(max_connections=3)) as (_, port):
            clients = []
            for _ in range(8):
                plain = socket.create_connection(("127.0.0.1", port))
                wrapped = await asyncio.to_thread(trusting(files).wrap_socket, plain, server_hostname="127.0.0.1")
                clients.append(wrapped)
            assert await ended_of(clients, 5) == 5
            assert (await answer(port, trusting(files))).endswith(BODY)

    run(main())


def test_clients_that_leave_their_responses_unread_keep_no_slot(run):
    async def main():
        async with serving(limits=ConnectionLimits(max_connections=2)) as (server, port):
            held = [await unread_responses(port) for _ in range(2)]
            for _ in range(4):
                assert (await answer(port)).endswith(BODY)
            for client in held:
                client.close()
            await wait_for_connections(server, 0)

    run(main())


def test_a_response_whose_rest_is_not_read_ends_its_connection(run):
    async def main():
        async with serving(connection=QuickConnection) as (server, port):
            client = await unread_responses(port)
            client.send(b"no HTTP")  # which ends the connection behind what it has not read
            await wait_for_connections(server, 0)
            client.close()

    run(main())


def test_a_handshake_has_a_time_limit(files, run):
    async def main():
        async with serving(ReloadedTls(files), handshake_s=0.2) as (_, port):
            with socket.create_connection(("127.0.0.1", port)) as silent:
                assert await ended_of([silent], 1) == 1

    run(main())


def test_handshakes_of_queued_clients_are_finished_before_a_server_closes(files, run):
    async def main():
        async with serving(ReloadedTls(files)) as (server, port):
            queued = socket.create_connection(("127.0.0.1", port))  # the loop has not seen it yet
            closing = asyncio.create_task(server.close(grace_s=3.0))

            def ask():
                with trusting(files).wrap_socket(queued, server_hostname="127.0.0.1") as client:
                    client.sendall(REQUEST)
                    return b"".join(iter(lambda: client.recv(1 << 16), b""))

            await asyncio.sleep(0.2)  # it has to be waited for
            assert (await asyncio.to_thread(ask)).endswith(BODY)
            await closing

    run(main())


def test_handshakes_in_progress_end_with_their_server(files, run):
    async def main():
        async with serving(ReloadedTls(files)) as (server, port):
            with socket.create_connection(("127.0.0.1", port)) as silent:
                await asyncio.sleep(0.1)
                await server.close(grace_s=0.1)
                assert has_ended(silent)

    run(main())


@pytest.mark.parametrize("has_tls", [True, False])
def test_a_server_without_open_files_left_accepts_later_and_closes(files, monkeypatch, has_tls):
    accept, failures = socket.socket.accept, [1]

    def failing_accept(self):
        if failures:
            failures.pop()
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(self)

    async def main():
        monkeypatch.setattr(socket.socket, "accept", failing_accept)
        async with serving(ReloadedTls(files) if has_tls else None) as (server, port):
            if has_tls:
                assert (await answer(port, trusting(files))).endswith(BODY)
                assert failures == []
            failures.append(1)
            await server.close(grace_s=0.1)

    asyncio.run(main())


def test_what_is_no_handshake_is_closed(files, run):
    async def main():
        async with serving(ReloadedTls(files)) as (_, port):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(REQUEST)
                assert await ended_of([client], 1) == 1
            with pytest.raises(ssl.SSLError):
                await answer(port, ssl.create_default_context())  # which does not trust the certificate

    run(main())
