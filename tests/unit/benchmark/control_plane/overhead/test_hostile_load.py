"""The measurement before a small server, which is held up by other requests or is not."""

import asyncio
import re
import threading
import time

import pytest

from rayinfer.benchmark.control_plane.overhead.hostile_load import ALL, QUIET, HostilePlan, measure_hostile_load
from rayinfer.errors import RayinferError

STREAM = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
REFUSAL = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"


def is_whole(request: bytes) -> bool:
    head, end, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
    return bool(end) and len(body) >= (int(length[1]) if length else 0)


class PacedServer:
    """HTTP server that streams a line each 5 ms, and is held up by every other request."""

    def __init__(self, held_up_s: float, num_lines: int = 1 << 20, refusal: bytes = REFUSAL) -> None:
        self._held_up_s, self._num_lines, self._refusal = held_up_s, num_lines, refusal
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._answer, "127.0.0.1", 0))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _answer(self, reader, writer) -> None:
        try:
            request = await reader.read(2**16)
            is_stream = b"python-httpx" in request  # the others may be half requests
            while is_stream and not is_whole(request):  # a close with bytes unread resets the connection
                request += await reader.read(2**16)
            if is_stream and self._num_lines:
                writer.write(STREAM)
                for _ in range(self._num_lines):
                    writer.write(b"data: {}\n\n")
                    await writer.drain()
                    await asyncio.sleep(0.005)
            else:
                time.sleep(self._held_up_s)  # noqa: ASYNC251 - it holds up the stream
                writer.write(self._refusal)
        except ConnectionError:
            pass
        finally:
            writer.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        answers = asyncio.all_tasks() - {asyncio.current_task()}
        for answer in answers:
            answer.cancel()
        await asyncio.gather(*answers, return_exceptions=True)


def measure(server: PacedServer, *kinds: str):
    plan = HostilePlan(base_url=server.url, model="m", kinds=kinds, num_rounds=1, phase_s=1.0)
    try:
        return measure_hostile_load(plan, "command", lambda text: None)
    finally:
        server.close()


def test_a_server_that_others_hold_up_moves_the_gaps_and_the_kind_is_named():
    report = measure(PacedServer(0.06), "tiny requests", "unknown paths")
    quiet, tiny, paths, everything = report.results
    assert [each.kind for each in (quiet, tiny, paths, everything)] == [QUIET, "tiny requests", "unknown paths", ALL]
    assert quiet.moved_ms == 0
    assert not quiet.answers
    for each in (tiny, paths, everything):
        assert each.moved_ms == pytest.approx(each.gaps.p99 - quiet.gaps.p99, abs=0.1)
        assert each.gaps.p99 >= 50  # more than one gap of a hundred; the quiet phase's depends on the machine
        assert each.gaps.max >= 60
        assert each.answers["400"] > 0


def test_a_stream_that_is_refused_is_an_error_and_no_result():
    with pytest.raises(RayinferError, match="the measured stream has ended: HTTP 400"):
        measure(PacedServer(0.0, num_lines=0), "tiny requests")


def test_requests_that_are_all_turned_away_are_an_error_and_no_result():
    refusal = b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\n"
    with pytest.raises(RayinferError, match="tiny requests: the service answered 403 to all requests"):
        measure(PacedServer(0.0, refusal=refusal), "tiny requests")
