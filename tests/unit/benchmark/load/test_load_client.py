import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from rayinfer.benchmark.load.load_client import LoadPlan, RequestTimes, run_load
from rayinfer.benchmark.load.workloads import LengthRange
from rayinfer.errors import ConfigError, RayinferError


class FakeServer:
    """Server that streams `max_tokens` tokens in chunks of `tokens_per_chunk`; `failures` are by request number."""

    def __init__(self, *, tokens_per_chunk=1, gap_s=0.0, has_usage_per_chunk=False, failures=None):
        self.tokens_per_chunk = tokens_per_chunk
        self.gap_s = gap_s
        self.has_usage_per_chunk = has_usage_per_chunk
        self.failures = failures or {}  # by the request's number; the warm-up is number 0
        self.bodies = []
        self.arrivals = []
        self.num_open = self.most_open = 0

    async def complete(self, request):
        number, body = len(self.bodies), await request.json()
        self.bodies.append(body)
        self.arrivals.append(asyncio.get_running_loop().time())
        failure = self.failures.get(number)
        if failure == "status":
            return web.json_response({"error": {"message": "too many"}}, status=429)
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if failure == "event":
            await self.send(response, {"error": {"message": "engine died"}})
        elif failure != "empty":
            await self.send_tokens(response, body["max_tokens"])
        if failure != "cut":
            await response.write(b"data: [DONE]\n\n")
        self.num_open -= 1
        return response

    async def send_tokens(self, response, num_tokens):
        for sent in range(0, num_tokens, self.tokens_per_chunk):
            if sent:
                await asyncio.sleep(self.gap_s)
            chunk = {"choices": [{"index": 0, "text": "x"}]}
            if self.has_usage_per_chunk:
                chunk["usage"] = {"completion_tokens": min(num_tokens, sent + self.tokens_per_chunk)}
            await self.send(response, chunk)
        await self.send(response, {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
        await self.send(response, {"choices": [], "usage": {"completion_tokens": num_tokens}})

    async def send(self, response, event):
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    @asynccontextmanager
    async def running(self):
        app = web.Application()
        app.router.add_post("/v1/completions", self.complete)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


async def load(server, **plan):
    settings = {"model": "m", "num_requests": 6, "input_len": 4, "output_len": 8, "concurrency": 2}
    async with server.running() as url:
        return await run_load(LoadPlan(base_url=url, **(settings | plan)))


async def test_every_request_is_sent_once_after_an_uncounted_warm_up():
    server = FakeServer()
    report = await load(server)
    assert len(server.bodies) == 7
    assert server.bodies[0] == server.bodies[1]
    expected = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True}}
    assert server.bodies[0].items() >= expected.items()
    assert len({tuple(body["prompt"]) for body in server.bodies[1:]}) == 6
    assert (report.completed, report.failed, report.output_tokens) == (6, 0, 48)
    assert report.ttft.count == report.end_to_end.count == 6
    assert report.inter_token.count == 6 * 7  # a chunk that only ends the answer is no token


async def test_lengths_may_be_ranges_and_all_tokens_count():
    server = FakeServer()
    report = await load(server, num_requests=12, input_len=LengthRange(2, 5), output_len=LengthRange(1, 4))
    sent = server.bodies[1:]
    assert {len(body["prompt"]) for body in sent} == {2, 3, 4, 5}
    assert {body["max_tokens"] for body in sent} == {1, 2, 3, 4}
    assert server.bodies[0] in sent
    assert (report.input_len, report.output_len) == ((2, 5), (1, 4))
    tokens = sum(len(body["prompt"]) + body["max_tokens"] for body in sent)
    assert report.total_tok_s * report.secs == pytest.approx(tokens, rel=0.05)


async def test_at_most_the_given_number_of_requests_are_open():
    server = FakeServer(gap_s=0.005)
    await load(server, concurrency=3, num_requests=9)
    assert server.most_open == 3


async def test_arrivals_at_a_rate_do_not_wait_for_earlier_requests():
    server = FakeServer(gap_s=0.05)
    report = await load(server, concurrency=1, num_requests=20, request_rate=200.0)
    assert server.most_open > 5
    assert report.concurrency is None
    assert report.request_rate == 200.0
    gaps = [later - earlier for earlier, later in zip(server.arrivals[1:], server.arrivals[2:], strict=False)]
    assert max(gaps) > 2 * min(gaps)  # random moments, no metronome


@pytest.mark.parametrize("has_usage_per_chunk", [True, False])
async def test_gaps_are_divided_by_the_tokens_of_a_chunk(has_usage_per_chunk):
    server = FakeServer(tokens_per_chunk=4, gap_s=0.04, has_usage_per_chunk=has_usage_per_chunk)
    report = await load(server, output_len=20, num_requests=2)
    assert report.tokens_per_chunk == 4.0
    assert 9.0 < report.inter_token.p50 < 20.0  # 40 ms for four tokens
    assert report.inter_token.count >= 2 * 16


async def test_failures_are_counted_by_reason_and_leave_the_latencies_alone():
    server = FakeServer(failures={2: "status", 3: "event", 4: "cut", 5: "empty"})
    report = await load(server, concurrency=1)
    assert (report.completed, report.failed) == (2, 4)
    assert report.ttft.count == 2
    assert report.output_tokens == 16
    reasons = " | ".join(report.errors)
    for part in ("HTTP 429", "too many", "engine died", "cut before [DONE]", "held no token"):
        assert part in reasons


async def test_a_failed_warm_up_is_an_error():
    with pytest.raises(RayinferError, match=r"the warm-up request to http://.* failed: HTTP 429"):
        await load(FakeServer(failures={0: "status"}))


async def test_a_slow_request_is_a_failure():
    server = FakeServer(gap_s=0.5)
    with pytest.raises(RayinferError, match="TimeoutError"):
        await load(server, timeout_s=0.1)


@pytest.mark.parametrize("settings", [{"concurrency": 0}, {"request_rate": 0.0}, {"request_rate": float("nan")}])
def test_an_impossible_load_is_refused(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        LoadPlan(base_url="u", model="m", num_requests=1, input_len=1, output_len=1, **settings)


def test_a_chunk_without_usage_gets_the_mean_of_the_rest():
    times = RequestTimes(gaps_s=[0.02, 0.06, 0.06], chunk_tokens=[1, 2, None, None], output_tokens=9)
    assert times.inter_token_s == pytest.approx([0.01] * 2 + [0.02] * 6)


async def test_tables_hold_rates_latencies_and_errors():
    rates, latencies, errors = (await load(FakeServer(failures={2: "cut"}))).tables()
    assert ("failed", 1) in rates.rows
    assert [row[0] for row in latencies.rows] == ["first token", "inter-token", "end to end"]
    assert errors.rows == [("ValueError: the stream was cut before [DONE]", 1)]
