"""More than there is room for: of KV blocks, of requests at once, and of requests for minutes."""

import asyncio
import statistics
import time

import psutil
import pytest

from support.faults.fault_bursts import ask_at_once
from support.faults.fault_load import Answer, ask, ask_all, new_client, record_answers, request_body
from support.faults.fault_report import FaultRow
from support.faults.fault_runs import judge
from support.faults.faulty_service import FaultyService
from support.services.polling import wait_until

NUM_BLOCKS = 64
REFUSED_WITHIN_S = 0.1
OVERLOAD_S = 300.0
SHORT = {"max_tokens": 20, "is_mixed": False}
LONG_WITHIN_S = 480.0  # thirty-two answers of 420 tokens, of which an engine computes three at a time


@pytest.fixture(scope="module")
def tight(host, model):
    service = FaultyService(host, "tight", [model.args(num_kv_blocks=NUM_BLOCKS, max_num_seqs=32)])
    yield service
    service.delete()


@pytest.fixture(scope="module")
def long_answers(_pair):
    """Answers that are longer than routers take any for, from engines with room for all of them."""
    with _pair.switched(slow_steps="0.002"):
        bodies = {number: request_body(number, max_tokens=420) for number in range(32)}
        return record_answers(_pair.url, bodies, within_s=LONG_WITHIN_S)


@pytest.mark.faults
@pytest.mark.parametrize("without", ["", "no-preemption"])
def test_f20_more_streams_than_there_are_blocks_for(pair, tight, long_answers, report, without):
    """Routers take every answer for one of 256 tokens at most, so that engines run out of blocks nevertheless.

    An engine that cannot make room dies of it, and its streams would go on elsewhere: the other run has no migration.
    """
    row = FaultRow(fault="F20", injected=f"long streams, {NUM_BLOCKS} blocks")
    bodies = [answer.body | {"stream": True} for answer in long_answers.values()]
    bodies = bodies[:6] if without else bodies  # as many as two engines end of at once
    with pair.switched(without, "no-migration" if without else "", slow_steps="0.002"):
        before = tight.metric("vllm:num_preemptions_total")
        for number, answer in enumerate(ask_all(tight.url, bodies, within_s=LONG_WITHIN_S)):
            row.count({answer.verdict(long_answers[number]): 1})
    wait_until(tight.is_complete, 120)
    num_preemptions = tight.metric("vllm:num_preemptions_total") - before
    row.note = f"{num_preemptions:.0f} preemptions"
    assert without or num_preemptions > 0
    judge(report, row, tight, without)


@pytest.mark.faults
@pytest.mark.parametrize("without", ["", "no-length-check"])
def test_f21_a_prompt_that_never_fits(tight, report, without):
    row = FaultRow(fault="F21", injected=f"a prompt of {NUM_BLOCKS + 1} blocks")
    body = request_body(0, prompt=[5] * (16 * NUM_BLOCKS + 1))
    with tight.switched(without):
        (answer,) = ask_all(tight.url, [body], within_s=10.0)
    row.count({"exact" if answer.status == 400 else answer.verdict(None): 1})
    assert tight.complete().status_code == 200  # nothing is wedged
    judge(report, row, tight, without)


@pytest.mark.parametrize("without", ["", pytest.param("no-admission", marks=pytest.mark.faults)])
def test_f26_a_burst_of_ten_times_the_capacity(host, model, report, without):
    """200 at once, of which 4 run and 16 wait; without the bound all 200 wait."""
    narrow = model.args(num_replicas=1, max_num_seqs=4)
    service = FaultyService(host, f"burst{without}", [narrow], limits={"max_waiting_requests": 16})
    body = request_body(0, max_tokens=model.num_tokens // 2, is_mixed=False)
    expected = record_answers(service.url, {0: body})
    row = FaultRow(fault="F26", injected="200 requests at once, room for 20", without=without)
    with service.switched(without):
        bodies = [body | {"stream": True, "stream_options": {"include_usage": True}}] * 200
        answers = ask_at_once(service.url, bodies)
    row.recovery_s, row.recovery_ceiling_s = wait_until(lambda: service.complete().status_code == 200), 2.0
    for answer in answers:
        row.count({answer.verdict(expected[0]): 1})
    if without:
        report.is_seen(row, is_harmed=row.refused == 0)
    else:
        assert {answer.status for answer in answers} == {200, 429}
        refusals_s = sorted(answer.first_s - answer.started_s for answer in answers if answer.status == 429)
        row.gap_s, row.gap_ceiling_s = refusals_s[-1], REFUSED_WITHIN_S
        row.note = f"gap: the slowest refusal; half took {statistics.median(refusals_s):.3f} s"
        judge(report, row, service, may_refuse=True)
    service.delete()


@pytest.mark.faults
def test_f27_twice_the_capacity_for_five_minutes(host, model, report):
    """Requests come at a steady pace; the other run has no bound on the queue."""
    narrow = model.args(num_replicas=1, max_num_seqs=4)
    service = FaultyService(host, "overload", [narrow], limits={"max_waiting_requests": 16})
    expected = record_answers(service.url, {0: request_body(0, **SHORT)})
    peak_per_s = asyncio.run(closed_loop(service.url, seconds=20.0))
    for without, seconds in (("", OVERLOAD_S), ("no-admission", 30.0)):
        row = FaultRow(fault="F27", injected=f"twice the capacity for {seconds:.0f} s")
        (router,) = service.pids("router")
        before = psutil.Process(router).memory_info().rss
        with service.switched(without):
            answers = asyncio.run(open_loop(service.url, 2 * peak_per_s, seconds))
        grown_mb = (psutil.Process(router).memory_info().rss - before) / 2**20
        for answer in answers:
            row.count({answer.verdict(expected[0]): 1})
        goodput = row.exact / (max(answer.ended_s for answer in answers) - answers[0].started_s)
        longest_s = max(answer.ended_s - answer.started_s for answer in answers)
        row.note = f"goodput {goodput / peak_per_s:.0%}, longest {longest_s:.1f} s, router +{grown_mb:.0f} MB"
        if without:
            row.without = without
            report.is_seen(row, is_harmed=longest_s > seconds / 4)
        else:
            assert goodput > 0.9 * peak_per_s
            assert grown_mb < 64
            judge(report, row, service, may_refuse=True)
    service.delete()


async def closed_loop(url: str, *, seconds: float) -> float:
    """Keep the service just busy; returns answers per second."""
    until, num_answers = time.monotonic() + seconds, 0

    async def go_on(http) -> int:
        count = 0
        while time.monotonic() < until:
            await ask(http, Answer(request_body(0, **SHORT)))
            count += 1
        return count

    async with new_client(url) as http:
        num_answers = sum(await asyncio.gather(*(go_on(http) for _ in range(8))))
    return num_answers / seconds


async def open_loop(url: str, per_s: float, seconds: float) -> list[Answer]:
    """Send requests at a steady pace."""
    started = time.monotonic()
    async with new_client(url) as http:
        asking = []
        for number in range(int(per_s * seconds)):
            await asyncio.sleep(max(0.0, started + number / per_s - time.monotonic()))
            asking.append(asyncio.ensure_future(ask(http, Answer(request_body(0, **SHORT)))))
        return await asyncio.gather(*asking)
