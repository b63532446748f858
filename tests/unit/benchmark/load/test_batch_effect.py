import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from rayinfer.benchmark.load.batch_effect import BatchEffectPlan, measure_batch_effect
from rayinfer.errors import RayinferError


class FakeService:
    """Service with completions, files and batches; a running batch counts rows as it is asked."""

    def __init__(self, *, num_rows_until_end=10**6, fails=False):
        self.num_rows_until_end = num_rows_until_end
        self.fails = fails
        self.uploads, self.batches, self.running_at_requests = [], [], []
        self.done = 0

    async def complete(self, request):
        body = await request.json()
        self.running_at_requests.append(bool(self.batches) and self.batches[-1]["status"] == "in_progress")
        if self.fails:
            return web.json_response({"error": {"message": "away"}}, status=503)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(body["max_tokens"]):
            await response.write(b'data: {"choices": [{"text": "x"}]}\n\n')
        usage = {"choices": [], "usage": {"completion_tokens": body["max_tokens"]}}
        await response.write(b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]\n\n")
        return response

    async def upload(self, request):
        form = await request.post()
        self.uploads.append([json.loads(line) for line in form["file"].file.read().splitlines()])
        return web.json_response({"id": "file-1"})

    async def create(self, request):
        self.batches.append({"id": "batch_1", "status": "in_progress", "errors": None})
        self.done = 0
        return self.current()

    async def retrieve(self, request):
        self.done += 3
        if self.done > self.num_rows_until_end:
            self.batches[-1]["status"] = "completed"
        return self.current()

    async def cancel(self, request):
        if self.batches[-1]["status"] == "in_progress":
            self.batches[-1]["status"] = "cancelled"
        return self.current()

    def current(self):
        return web.json_response(self.batches[-1] | {"request_counts": {"completed": self.done}})

    @asynccontextmanager
    async def running(self):
        app = web.Application()
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_post("/v1/files", self.upload)
        app.router.add_post("/v1/batches", self.create)
        app.router.add_get("/v1/batches/batch_1", self.retrieve)
        app.router.add_post("/v1/batches/batch_1/cancel", self.cancel)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


async def measure(service):
    async with service.running() as url:
        plan = BatchEffectPlan(
            base_url=url, model="m", num_rounds=2, num_requests=3, max_pause_s=0.0, num_rows=5, settling_s=0.0
        )
        return await measure_batch_effect(plan, "command", lambda text: None)


async def test_phases_alternate_and_every_batch_is_cancelled():
    service = FakeService()
    report = await measure(service)
    assert service.running_at_requests == [False] * 3 + [True] * 3 + [False] * 3 + [True] * 3
    assert [batch["status"] for batch in service.batches] == ["cancelled"] * 2
    assert [len(rows) for rows in service.uploads] == [5, 5]
    assert service.uploads[0][0]["body"]["model"] == "m"
    assert (report.alone.count, report.beside_batch.count, len(report.rounds)) == (6, 6, 2)
    assert report.added_ms == pytest.approx(report.beside_batch.p95 - report.alone.p95, abs=0.01)
    assert report.step.count == 6 * 7
    assert len(report.tables()) == 3


async def test_a_batch_that_ends_too_early_is_an_error():
    with pytest.raises(RayinferError, match="more than 5 rows"):
        await measure(FakeService(num_rows_until_end=7))


async def test_a_failed_interactive_request_is_an_error():
    with pytest.raises(RayinferError, match="HTTP 503"):
        await measure(FakeService(fails=True))
