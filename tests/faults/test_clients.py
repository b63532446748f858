"""Clients that leave, that read slowly, and whose time runs out."""

import asyncio
import contextlib
import socket
import statistics
import time
from collections import Counter

import httpx
import pytest

from support.faults.fault_bursts import request_bytes
from support.faults.fault_load import Answer, Load, ask, ask_all, new_client, record_answers, request_body
from support.faults.fault_report import FaultRow
from support.faults.fault_runs import count_leaks, judge
from support.faults.faulty_service import FaultyService
from support.services.polling import wait_until

LONG = request_body(0, max_tokens=2000) | {"stream": True}
FREED_S = 1.0
NUM_SLOW = 32
BLOCK_SIZE = 16
BESIDE_S = 15.0
CUT_S = 75.0  # 60 s without reading, and the time in which the buffers fill


async def leave_streams(url: str, num_streams: int, at_token: int, body: dict[str, object]) -> int:
    """Open streams, read so many pieces of each, and close it; returns how many got so far."""

    async def read_and_leave(http: httpx.AsyncClient) -> bool:
        async with http.stream("POST", "/v1/completions", json=body) as response:
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
    num_left = asyncio.run(leave_streams(pair.url, 100, 10, LONG))
    row.count({"exact": num_left, "failed": 100 - num_left})
    row.recovery_s = wait_until(lambda: pair.kv_blocks_used == 0)
    judge(report, row, pair)


@pytest.mark.faults
def test_f22_without_aborts_engines_compute_for_disconnected_clients(pair, report):
    row = FaultRow(fault="F22", injected="clients leave at token 10", without="no-abort", sent=10, exact=10)
    with pair.switched("no-abort"):
        asyncio.run(leave_streams(pair.url, 10, 10, LONG | {"max_tokens": 300}))
        time.sleep(3 * FREED_S)
        row.leaked = pair.num_leaked()
    with pair.switched(slow_steps="0.001"):  # they are not aborted any more
        wait_until(lambda: pair.kv_blocks_used == 0, 240)
    report.is_seen(row)


@pytest.mark.faults
@pytest.mark.parametrize("without", ["", "no-abort", "keep-blocks"])
def test_f23_clients_that_leave_in_the_queue_in_their_prompt_and_between_choices(host, model, report, without):
    """No resource of disconnected clients is left, and other requests get their usual tokens."""
    narrow = FaultyService(host, "narrow", [model.args(max_num_seqs=4, num_replicas=1, num_kv_blocks=256)])
    row = FaultRow(fault="F23", injected="clients leave in queue, prompt and between choices", without=without)
    kinds = [
        LONG,  # of which most wait
        LONG | {"prompt": "once upon a time " * 100},
        LONG | {"n": 3},
        LONG | {"stream": False},
    ]
    leaving = [kinds[i % len(kinds)] for i in range(100)]
    fates, within_s = Counter(), 50 * model.token_s
    staying = {number: request_body(number, max_tokens=16) for number in range(6)}
    expected = record_answers(narrow.url, staying)
    with narrow.switched(without):
        for _ in range({"": 10, "no-abort": 1, "keep-blocks": 3}[without]):
            left, stayed = asyncio.run(leave_beside(narrow.url, leaving, within_s, staying))
            row.count(Counter(answer.verdict(expected[answer.number]) for answer in stayed))
            # Who was still waiting when it left has no answer to be judged by, but by what it left behind.
            row.count(Counter(answer.verdict(None) for answer in left if not answer.is_hung))
            fates.update("before" if answer.status is None else "after" for answer in left if answer.is_hung)
        row.note = f"{fates['before']} left before the answer began, {fates['after']} in it"
        if without == "no-abort":  # requests that are not aborted end by themselves
            row.leaked = narrow.num_leaked()
            report.is_seen(row, is_harmed=row.leaked > 0)
        elif without:
            remains = count_leaks(narrow, row)
            assert not has_all_blocks(narrow, within_s=30.0)
            report.is_seen(row, is_harmed=remains.kv_blocks > 0 and remains.running == remains.waiting == 0)
        else:
            assert min(fates["before"], fates["after"]) > 0
            assert row.exact >= 10 * len(staying)
            judge(report, row, narrow)
            assert has_all_blocks(narrow)
    narrow.delete()


def has_all_blocks(service, within_s: float = 240.0) -> bool:
    """Return whether a request gets every KV block that there is, whatever the engine counts as in use."""
    num_tokens = int(service.metric("rayinfer_kv_blocks_total")) * BLOCK_SIZE - 1
    body = request_body(0, max_tokens=1) | {"prompt": [5 + i % 200 for i in range(num_tokens)]}
    return ask_all(service.url, [body], within_s=within_s)[0].verdict(None) == "exact"


async def leave_beside(
    url: str, leaving: list[dict[str, object]], seconds: float, staying: dict[int, dict[str, object]]
) -> tuple[list[Answer], list[Answer]]:
    """Have some clients leave, and others stay for their answers; returns what each got."""
    async with new_client(url) as http:
        leave = asyncio.create_task(leave_after(url, leaving, seconds))
        await asyncio.sleep(seconds / 2)  # those that stay come in the middle of them
        stayed = await asyncio.gather(*(ask(http, Answer(body, number)) for number, body in staying.items()))
        return await leave, stayed


async def leave_after(url: str, bodies: list[dict[str, object]], seconds: float) -> list[Answer]:
    """Send requests and leave them, one after the other, within so many seconds."""
    async with new_client(url) as http:
        within_s = [seconds * i / len(bodies) for i in range(len(bodies))]
        asking = (ask(http, Answer(body), within_s=left) for body, left in zip(bodies, within_s, strict=True))
        return await asyncio.gather(*asking)


@pytest.mark.faults
@pytest.mark.parametrize("without", ["", "no-buffer"])
def test_f24_slow_readers_delay_no_other_request(host, tiny, report, without):
    """Streams beside slow readers are as quick as beside readers without pauses.

    The tiny model answers quickly enough to fill the buffers on the way to a slow client.
    """
    service = FaultyService(host, "slowly-read", [tiny.args()])
    row = FaultRow(fault="F24", injected=f"{NUM_SLOW} clients read 64 bytes a second", without=without)
    with service.switched(slow_steps=tiny.step_s):
        expected = record_answers(service.url, {number: request_body(number) for number in range(4)})
        quick, _ = load_beside(service, expected, pause_s=0.01, num_bytes=65536)
    with service.switched(without, slow_steps=tiny.step_s):
        deaf = open_slowly(service)
        opened_s = time.monotonic()
        slow, verdicts = load_beside(service, expected, pause_s=1.0, num_bytes=64)
        row.count(verdicts)
        row.gap_s = p99(slow)
        row.note = (
            f"gap: p99 between pieces beside them; beside readers who keep up {p99(quick):.3f} s; "
            f"medians {statistics.median(slow):.3f} and {statistics.median(quick):.3f} s"
        )
        if without:
            deaf.close()
            report.is_seen(row, is_harmed=row.gap_s > 2 * p99(quick))
        else:
            row.gap_ceiling_s, row.recovery_ceiling_s = 1.2 * p99(quick), CUT_S
            wait_until(lambda: not service.has_client(deaf.getsockname()[1]), 2 * CUT_S)
            row.recovery_s = time.monotonic() - opened_s
            row.note += "; back: one that reads nothing is cut"
            deaf.close()
            judge(report, row, service)
    service.delete()


def load_beside(service, expected, *, pause_s, num_bytes) -> tuple[list[float], Counter[str]]:
    """Run four streams beside clients that read so much after each pause; returns the times between pieces."""
    beside = [open_slowly(service) for _ in range(NUM_SLOW)]
    with Load(service.url, expected, num_streams=4, whole_per_s=0.0, within_s=2 * BESIDE_S) as load:
        until = time.monotonic() + BESIDE_S
        while time.monotonic() < until:
            for connection in beside:
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    connection.recv(num_bytes)
            time.sleep(pause_s)
    for connection in beside:
        connection.close()
    return [gap_s for answer in load.answers for gap_s in answer.gaps_s[0 if answer.is_hung else 1 :]], load.verdicts()


def p99(times_s: list[float]) -> float:
    """The time that one in a hundred takes longer than."""
    return sorted(times_s)[int(0.99 * len(times_s))]


def open_slowly(service) -> socket.socket:
    """Ask for a long stream on a connection with next to no room for it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", service.port))
    connection.sendall(request_bytes(service.url, LONG | {"logprobs": 5}))
    connection.setblocking(False)
    return connection


@pytest.mark.faults
@pytest.mark.parametrize("without", ["", "no-deadline"])
def test_f25_requests_whose_time_is_up(host, model, report, without):
    service = FaultyService(host, "hasty", [model.args(num_replicas=1)], request_timeout_s=0.5)
    row = FaultRow(fault="F25", injected="0.5 s for 2,000 tokens", without=without)
    bodies = [LONG | {"stream": i % 2 == 0} for i in range(8)]
    with service.switched(without):
        answers = ask_all(service.url, bodies, within_s=10.0)
        for answer in answers:
            row.count({"exact" if reports_timeout(answer) else answer.verdict(None): 1})
        if without:
            report.is_seen(row)
        else:
            row.recovery_s, row.recovery_ceiling_s = wait_until(lambda: service.kv_blocks_used == 0), FREED_S
            judge(report, row, service)
    service.delete()


def reports_timeout(answer) -> bool:
    """Return whether it is a 504, or a stream that ends with that error."""
    if answer.body["stream"]:
        return answer.is_complete and answer.error is not None and answer.error["code"] == "timeout"
    return answer.status == 504
