"""Clients that leave, that read slowly, and whose time runs out."""

import asyncio
import contextlib
import socket
import statistics
import time

import httpx
import pytest

from fault_load import Load, ask_all, new_client, request_body
from fault_report import FaultRow
from fault_runs import STEP_S, count_leaks, judge
from faulty_service import FaultyService
from service_client import wait_until

LONG = request_body(0, max_tokens=2000) | {"stream": True}
FREED_S = 1.0
NUM_SLOW = 32


async def leave_streams(url: str, num_streams: int, at_token: int) -> int:
    """Open streams, read so many pieces of each, and close it; returns how many got so far."""

    async def read_and_leave(http: httpx.AsyncClient) -> bool:
        async with http.stream("POST", "/v1/completions", json=LONG) as response:
            num_pieces = 0
            async for line in response.aiter_lines():
                num_pieces += line.startswith("data: {")
                if num_pieces == at_token:
                    return True
        return False

    async with new_client(url) as http:
        return sum(await asyncio.gather(*(read_and_leave(http) for _ in range(num_streams))))


def test_f22_clients_that_leave_their_streams(pair, report):
    row = FaultRow(fault="F22", injected="clients leave at token 10", recovery_ceiling_s=FREED_S)
    num_left = asyncio.run(leave_streams(pair.url, 100, 10))
    row.count({"exact": num_left, "failed": 100 - num_left})
    row.recovery_s = wait_until(lambda: pair.kv_blocks_used == 0)
    judge(report, row, pair)


def test_f22_without_aborts_engines_go_on_for_nobody(pair, report):
    row = FaultRow(fault="F22", injected="clients leave at token 10", without="no-abort", sent=10, exact=10)
    with pair.switched("no-abort"):
        asyncio.run(leave_streams(pair.url, 10, 10))
        time.sleep(3 * FREED_S)
        row.leaked = pair.num_leaked()
    with pair.switched(slow_steps="0.001"):  # nobody aborts them any more
        wait_until(lambda: pair.kv_blocks_used == 0, 240)
    pair.put_switch("slow-steps", STEP_S)
    report.is_seen(row)


@pytest.mark.faults
@pytest.mark.parametrize("without", ["", "no-abort"])
def test_f23_clients_that_leave_in_the_queue_in_their_prompt_and_between_choices(
    host, model_args, tiny_model, report, without
):
    narrow = FaultyService(host, "narrow", [model_args(max_num_seqs=4, num_replicas=1)])
    row = FaultRow(fault="F23", injected="clients leave in queue, prompt and between choices")
    kinds = [
        LONG,  # of which most wait
        LONG | {"prompt": "once upon a time " * 400},
        LONG | {"n": 3},
        LONG | {"stream": False},
    ]
    num_rounds = 1 if without else 10
    with narrow.switched(*filter(None, [without])):
        for _ in range(num_rounds):
            asyncio.run(leave_after(narrow.url, [kinds[i % len(kinds)] for i in range(100)], 1.0))
        row.sent = row.exact = 100 * num_rounds
        row.without = without
        if without:
            row.leaked = narrow.num_leaked()
            report.is_seen(row)
        else:
            judge(report, row, narrow)
    narrow.delete()


async def leave_after(url: str, bodies: list[dict[str, object]], seconds: float) -> None:
    """Send requests and leave them, one after the other, within so many seconds."""

    async def leave(http: httpx.AsyncClient, body: dict[str, object], after_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(after_s):
                await http.post("/v1/completions", json=body)

    async with new_client(url) as http:
        await asyncio.gather(*(leave(http, body, seconds * i / len(bodies)) for i, body in enumerate(bodies)))


@pytest.mark.faults
@pytest.mark.parametrize("without", ["", "no-buffer"])
def test_f24_slow_readers_hold_nobody_up(pair, expected, report, without):
    row = FaultRow(fault="F24", injected=f"{NUM_SLOW} clients read a few bytes a second", without=without)
    with Load(pair.url, expected, num_streams=4, whole_per_s=0.0) as load:
        time.sleep(5.0)
    alone_s = statistics.median(time_per_piece(answer) for answer in load.answers if answer.ended_s)
    with pair.switched(*filter(None, [without])):
        slow = [open_slowly(pair) for _ in range(NUM_SLOW)]
        with Load(pair.url, expected, num_streams=4, whole_per_s=0.0) as load:
            until = time.monotonic() + 15.0
            while time.monotonic() < until:
                for connection in slow:
                    with contextlib.suppress(BlockingIOError):
                        connection.recv(64)
                time.sleep(1.0)
        beside_s = statistics.median(time_per_piece(answer) for answer in load.answers if answer.ended_s)
        for connection in slow:
            connection.close()
    row.count(load.verdicts())
    row.gap_s, row.gap_ceiling_s = beside_s, None if without else 1.2 * alone_s
    row.note = f"time per piece beside them; {alone_s:.3f} s alone"
    if without:
        report.is_seen(row, is_harmed=beside_s > 2 * alone_s)
        count_leaks(pair)
    else:
        judge(report, row, pair)


def time_per_piece(answer):
    return (answer.ended_s - answer.started_s) / max(1, answer.num_pieces)


def open_slowly(service) -> socket.socket:
    """Ask for a long stream on a connection with next to no room for it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", service.port))
    request = httpx.Request("POST", f"{service.url}/v1/completions", json=LONG | {"logprobs": 5})
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    connection.sendall(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + request.content)
    connection.setblocking(False)
    return connection


@pytest.mark.faults
@pytest.mark.parametrize("without", ["", "no-deadline"])
def test_f25_requests_whose_time_is_up(host, model_args, report, without):
    service = FaultyService(host, "hasty", [model_args(num_replicas=1)], request_timeout_s=0.5)
    row = FaultRow(fault="F25", injected="0.5 s for 2,000 tokens", without=without)
    bodies = [LONG | {"stream": i % 2 == 0} for i in range(8)]
    with service.switched(*filter(None, [without])):
        answers = ask_all(service.url, bodies, within_s=10.0)
        for answer in answers:
            row.count({"exact" if is_told_of_the_time(answer) else answer.verdict(None): 1})
        if without:
            report.is_seen(row)
        else:
            row.recovery_s, row.recovery_ceiling_s = wait_until(lambda: service.kv_blocks_used == 0), FREED_S
            judge(report, row, service)
    service.delete()


def is_told_of_the_time(answer) -> bool:
    """Whether it is a 504, or a stream that says so and that it is over."""
    if answer.body["stream"]:
        return answer.is_complete and answer.error is not None and answer.error["code"] == "timeout"
    return answer.status == 504
