import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from starlette.types import Receive, Scope, Send

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.app import build_app
from rayinfer_deployments.router.http_connection import HttpConnection
from rayinfer_deployments.router.http_server import HttpServer
from support.faults.bad_requests import MIB, ask
from support.services.free_ports import free_port

LARGE = 8 * MIB
CONCURRENT_PARTS = [8 * MIB, *range(1, 9)]  # bytes; the first fills every buffer on the way
CEILING_S = 10.0  # waits below are a tenth of a second
GOOD = b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"
GOOD_AND_LAST = GOOD[:-2] + b"connection: close\r\n\r\n"


SERVICE = build_app({}, ServiceMetrics())


class QuickConnection(HttpConnection):
    head_timeout_s = 0.3
    stalled_s = 0.3
    max_head_bytes = 4096


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Ours, but for a few paths with which it is easier to see what the connection does."""
    if scope["path"] == "/stream":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(5):
            await asyncio.sleep(0.1)
            await send({"type": "http.response.body", "body": b"more ", "more_body": True})
        await send({"type": "http.response.body", "body": b"end"})
    elif scope["path"] == "/flood":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": bytes(2**16), "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    elif scope["path"] == "/concurrent":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        parts = [{"type": "http.response.body", "body": bytes(size), "more_body": True} for size in CONCURRENT_PARTS]
        await asyncio.gather(*map(send, parts))
        await send({"type": "http.response.body", "body": b""})
    elif scope["path"] == "/unread":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})
    elif scope["path"] == "/refused":  # with an answer that does not leave this machine before the client reads
        headers = [(b"content-length", b"%d" % LARGE), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": bytes(LARGE)})
    elif scope["path"] == "/body":
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})
    else:
        await SERVICE(scope, receive, send)


@pytest.fixture
async def port() -> AsyncIterator[int]:
    port = free_port()
    server = HttpServer(application, "127.0.0.1", port, connection=QuickConnection)
    yield port
    await server.close(grace_s=0.0)


class Client(asyncio.Protocol):
    """Client that keeps all received data, until the service closes the connection."""

    def __init__(self) -> None:
        self.received = b""
        self.has_ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_ended.set()


async def talk(port: int, *parts: bytes, pause_s: float = 0.0) -> bytes:
    """Send the parts as long as the service listens; returns all that it said until it closed the connection."""
    transport, client = await asyncio.get_running_loop().create_connection(Client, "127.0.0.1", port)
    try:
        async with asyncio.timeout(CEILING_S):
            for part in parts:
                if client.has_ended.is_set():
                    break
                transport.write(part)
                await asyncio.sleep(pause_s)
            await client.has_ended.wait()
    finally:
        transport.abort()
    return client.received


async def answers_well(port: int) -> bool:
    answer = await talk(port, GOOD_AND_LAST)
    return answer.startswith(b"HTTP/1.1 200 ")


def status_and_code(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]["code"]


async def test_a_connection_on_which_nothing_is_asked_is_closed(port):
    assert await talk(port) == b""


async def test_headers_that_do_not_end_are_408(port):
    assert status_and_code(await talk(port, GOOD[:-2])) == (408, "request_too_slow")


async def test_headers_that_drip_are_408_although_they_never_stop(port):
    drips = [GOOD[:-2], *[b"a: b\r\n"] * 100]
    assert status_and_code(await talk(port, *drips, pause_s=0.02)) == (408, "request_too_slow")


async def test_empty_lines_do_not_keep_a_connection(port):
    assert await talk(port, *[b"\r\n"] * 100, pause_s=0.02) == b""
    answer = await talk(port, GOOD, *[b"\r\n"] * 100, pause_s=0.02)
    assert answer.count(b"HTTP/1.1 200 ") == 1


async def test_the_second_request_of_a_connection_has_no_more_time_than_the_first(port):
    answer = await talk(port, GOOD, *[GOOD[:10], *[b"a"] * 100], pause_s=0.02)
    first, _, second = answer[1:].partition(b"HTTP/1.1")
    assert first.startswith(b"TTP/1.1 200 ")
    assert status_and_code(b"HTTP/1.1" + second)[0] == 408


async def test_a_request_in_slow_parts_is_answered_if_it_is_whole_in_time(port):
    answer = await talk(port, GOOD_AND_LAST[:10], GOOD_AND_LAST[10:20], GOOD_AND_LAST[20:], pause_s=0.03)
    assert answer.startswith(b"HTTP/1.1 200 ")


async def test_the_pause_between_two_requests_is_not_the_time_for_a_head(port):
    answer = await talk(port, GOOD, GOOD_AND_LAST, pause_s=0.7)
    assert answer.count(b"HTTP/1.1 200 ") == 2


async def test_a_stream_goes_on_while_the_next_request_is_not_whole(port):
    answer = await talk(port, b"GET /stream HTTP/1.1\r\nhost: a\r\n\r\n" + GOOD[:20])
    assert answer.count(b"more ") == 5
    assert b"0\r\n\r\nHTTP/1.1 408 " in answer


async def test_a_stream_ends_where_garbage_follows_its_request(port):
    answer = await talk(port, b"GET /stream HTTP/1.1\r\nhost: a\r\n\r\n", b"\0garbage\r\n\r\n", pause_s=0.15)
    assert answer.count(b"HTTP/1.1") == 1
    assert b"invalid_http" not in answer


async def test_a_refused_requests_unread_body_does_not_keep_its_connection(port):
    head = b"POST /unread HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n"
    answer = await talk(port, head, *[b"x"] * 100, pause_s=0.02)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"ok")


async def test_a_client_that_reads_after_sending_a_refused_body_gets_the_whole_answer(port):
    head = b"POST /refused HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % (5 * MIB)
    answer = await asyncio.to_thread(ask, "127.0.0.1", port, head + b"x" * 5 * MIB)
    assert (answer.status, len(answer.body)) == (413, LARGE)


async def test_a_client_that_never_stops_sending_is_disconnected(port):
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 5000000\r\n\r\n"
    )
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head)
    async with asyncio.timeout(CEILING_S):
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.05)
    writer.close()


async def test_a_slow_body_is_the_applications_matter(port):
    head = b"POST /body HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 20\r\n\r\n"
    answer = await talk(port, head, *[b"x"] * 20, pause_s=0.02)
    assert answer.endswith(b"x" * 20)


async def test_a_body_may_be_larger_than_all_headers(port):
    parts = [b"x" * 1000] * 20
    head = b"POST /body HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 20000\r\n\r\n"
    answer = await talk(port, head, *parts, pause_s=0.005)
    assert answer.endswith(b"x" * 20000)


@pytest.mark.parametrize(
    "start",
    [
        GOOD[:-2] + b"a: ",
        b"GET /",
        GOOD[:-2] + b"a",
        b"POST /body HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5;",
    ],
)
async def test_what_does_not_end_is_given_up_before_it_fills_the_memory(port, start):
    answer = await talk(port, start, *[b"a" * 1000] * 100, pause_s=0.001)
    if not start.startswith(b"POST"):  # whose answer belongs to the application
        assert status_and_code(answer) == (431, "headers_too_large")
    assert await answers_well(port)


@pytest.mark.parametrize("method", [b"GET", b"POST"])
@pytest.mark.parametrize(
    "body", [b"", b"content-length: 4\r\n\r\nbody", b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"]
)
async def test_a_request_that_asks_for_a_web_socket_is_answered_like_any_other(port, method, body):
    head = method + b" /body HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    answer = await talk(port, head + body + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in answer


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\0\1\2\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\na b: c\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_what_is_no_http_is_400_in_the_services_own_words(port, request_bytes):
    assert status_and_code(await talk(port, request_bytes)) == (400, "invalid_http")
    assert await answers_well(port)


@pytest.mark.parametrize("connection", [b"", b"connection: keep-alive\r\n"])
async def test_a_stream_to_an_http_1_0_client_has_no_chunks_and_ends_with_the_connection(port, connection):
    answer = await talk(port, b"GET /stream HTTP/1.0\r\nhost: a\r\n" + connection + b"\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    assert body == b"more " * 5 + b"end"


async def test_an_answer_of_known_length_to_an_http_1_0_client_keeps_its_length(port):
    head, _, body = (await talk(port, b"GET /unread HTTP/1.0\r\n\r\n")).partition(b"\r\n\r\n")
    assert b"content-length: 2" in head.lower()
    assert body == b"ok"


async def test_concurrent_parts_of_an_http_1_0_answer_all_reach_a_slow_client(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(b"GET /concurrent HTTP/1.0\r\n\r\n")
    await asyncio.sleep(0.1)  # the service waits for the client
    async with asyncio.timeout(CEILING_S):
        answer = await reader.read(-1)
    writer.close()
    body = answer.partition(b"\r\n\r\n")[2]
    assert len(body) == sum(CONCURRENT_PARTS)


async def test_a_client_that_reads_nothing_of_its_answer_is_cut_off_and_a_slow_one_is_not(port):
    request = b"GET /flood HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    stalled_reader, stalled = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    slow_reader, slow = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    async with asyncio.timeout(CEILING_S):
        stalled.write(request)
        slow.write(request)
        num_bytes = 0
        while part := await slow_reader.read(2**20):  # it takes its time, and gets all
            num_bytes += len(part)
            if num_bytes < 20 * 2**16:
                await asyncio.sleep(0.05)
        assert num_bytes > 1000 * 2**16
        await asyncio.sleep(3 * QuickConnection.stalled_s)  # however fast the other one was
        num_bytes = 0
        with contextlib.suppress(ConnectionResetError):
            while part := await stalled_reader.read(2**20):
                num_bytes += len(part)
        assert num_bytes < 1000 * 2**16
    stalled.close()
    slow.close()
