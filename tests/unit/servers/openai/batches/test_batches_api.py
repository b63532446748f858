import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from rayinfer.access.caller import Caller
from rayinfer.batches.owner import BatchOwner
from rayinfer.batches.records import BatchLimits, RowUsage
from rayinfer.errors import NotReady
from rayinfer.metrics.batch_counts import BatchCounts
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.app import ServedModel, build_app
from rayinfer.servers.openai.batches.routes import BatchServices
from rayinfer.servers.openai.batches.row_usage import row_usage
from rayinfer.servers.openai.batches.runner import BatchRunner
from support.fakes.fake_generator import FakeGenerator
from support.fakes.local_batches import LocalBatches
from support.services.polling import until

ENDPOINT = "/v1/completions"
REQUEST_TIMEOUT_S = 90.0
LIMITS = BatchLimits(max_requests=40, max_file_bytes=300_000)


class Service:
    """An application with batches, whose owner may end and come back."""

    def __init__(self, models: dict[str, ServedModel], folder: Path) -> None:
        self.folder = folder
        self.ahead_s = 0.0  # of the time that it is
        self.owner = self.open_owner()
        self.batches = LocalBatches(self.owner)
        self.num_slots = 4
        self.counts = BatchCounts()
        self.runner = BatchRunner(
            "router",
            self.batches,
            find_caller=lambda _, tenant: Caller(tenant),
            num_slots=lambda: self.num_slots,
            counts=self.counts,
        )
        services = BatchServices(shared=self.batches, on_batch=self.runner.wake, max_file_bytes=LIMITS.max_file_bytes)
        self.app = build_app(
            models, ServiceMetrics(), max_body_bytes=20_000, batches=services, request_timeout_s=REQUEST_TIMEOUT_S
        )
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://service")

    async def upload(self, content: bytes, purpose: str = "batch") -> httpx.Response:
        return await self.client.post(
            "/v1/files",
            files={"file": ("in.jsonl", content)},
            data={"purpose": purpose, "expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"},
        )

    async def create(self, content: bytes, **fields: object) -> httpx.Response:
        file_id = (await self.upload(content)).json()["id"]
        body = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h"} | fields
        return await self.client.post("/v1/batches", json=body)

    async def wait(self, batch_id: str, *statuses: str) -> dict[str, object]:
        async with asyncio.timeout(20):
            while True:
                batch = (await self.client.get(f"/v1/batches/{batch_id}")).json()
                if batch["status"] in statuses:
                    return batch
                await asyncio.sleep(0.02)

    async def lines(self, file_id: object) -> list[dict[str, object]]:
        content = (await self.client.get(f"/v1/files/{file_id}/content")).text
        return [json.loads(line) for line in content.splitlines()]

    def restart(self) -> None:
        self.owner.close()
        self.batches.owner = self.owner = self.open_owner()

    def open_owner(self) -> BatchOwner:
        return BatchOwner(self.folder, limits=LIMITS, clock=lambda: time.time() + self.ahead_s)


@pytest.fixture
async def service(models: dict[str, ServedModel], tmp_path: Path) -> AsyncIterator[Service]:
    service = Service(models, tmp_path / "batches")
    yield service
    await service.client.aclose()
    service.owner.close()


@pytest.fixture
async def running(service: Service) -> AsyncIterator[Service]:
    task = asyncio.create_task(service.runner.run(service.app))
    yield service
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def input_lines(number: int, **body: object) -> bytes:
    return endpoint_lines(ENDPOINT, number, **({"prompt": "hello", "max_tokens": 3} | body))


def endpoint_lines(endpoint: str, number: int, **body: object) -> bytes:
    rows = ({"custom_id": f"row-{index}", "method": "POST", "url": endpoint, "body": body} for index in range(number))
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


async def test_a_batch_is_answered_in_the_order_of_its_input(running: Service):
    created = await running.create(input_lines(20), metadata={"job": "first"})
    assert created.status_code == 200
    assert created.json()["status"] == "validating"
    batch = await running.wait(created.json()["id"], "completed")
    assert batch["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
    assert batch["metadata"] == {"job": "first"}
    assert batch["error_file_id"] is None
    lines = await running.lines(batch["output_file_id"])
    assert [line["custom_id"] for line in lines] == [f"row-{index}" for index in range(20)]
    assert {line["response"]["status_code"] for line in lines} == {200}
    assert batch["usage"]["output_tokens"] == sum(
        line["response"]["body"]["usage"]["completion_tokens"] for line in lines
    )


async def test_rows_run_at_the_lowest_priority(running: Service, generator: FakeGenerator):
    created = await running.create(input_lines(1, priority=-3))
    await running.wait(created.json()["id"], "completed")
    assert [request.priority for request in generator.requests] == [10]


async def test_rows_may_wait_longer_than_other_requests(running: Service, generator: FakeGenerator):
    created = await running.create(input_lines(1))
    await running.wait(created.json()["id"], "completed")
    await running.client.post(ENDPOINT, json={"prompt": "hello", "max_tokens": 3})
    row, other = generator.requests
    assert row.timeout_s is None
    assert REQUEST_TIMEOUT_S - 10 < other.timeout_s <= REQUEST_TIMEOUT_S


BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
    "/v1/responses": {"input": "hi", "max_output_tokens": 3},
    "/v1/messages": {"model": "org/tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
}


@pytest.mark.parametrize("endpoint", BODIES)
async def test_rows_of_other_endpoints_have_the_responses_of_these(
    running: Service, generator: FakeGenerator, endpoint: str
):
    single = (await running.client.post(endpoint, json=BODIES[endpoint])).json()
    created = await running.create(endpoint_lines(endpoint, 2, **BODIES[endpoint]), endpoint=endpoint)
    batch = await running.wait(created.json()["id"], "completed")
    lines = await running.lines(batch["output_file_id"])
    bodies = [line["response"]["body"] for line in lines]
    assert [body.keys() for body in bodies] == [single.keys()] * 2
    assert [body["usage"] for body in bodies] == [single["usage"]] * 2
    assert [request.priority for request in generator.requests] == [0, 10, 10]
    tokens = RowUsage(*(2 * number for number in row_usage(single)))
    assert tokens.output_tokens > 0
    assert batch["usage"]["input_tokens"] == tokens.prompt_tokens > 0
    assert batch["usage"]["output_tokens"] == tokens.output_tokens
    assert batch["usage"]["input_tokens_details"] == {"cached_tokens": tokens.cached_tokens}


@pytest.mark.parametrize("stored", [None, True])
async def test_responses_of_a_batch_are_stored_on_request_only(running: Service, stored: bool | None):
    body = {"input": "hi", "max_output_tokens": 3} | ({} if stored is None else {"store": stored})
    created = await running.create(endpoint_lines("/v1/responses", 1, **body), endpoint="/v1/responses")
    batch = await running.wait(created.json()["id"], "completed")
    (line,) = await running.lines(batch["output_file_id"])
    found = await running.client.get(f"/v1/responses/{line['response']['body']['id']}")
    assert found.status_code == (200 if stored else 404)


async def test_an_error_of_a_messages_row_has_its_protocols_form(running: Service):
    content = endpoint_lines("/v1/messages", 1, model="org/tiny", messages=[], max_tokens=3)
    created = await running.create(content, endpoint="/v1/messages")
    batch = await running.wait(created.json()["id"], "completed")
    (line,) = await running.lines(batch["error_file_id"])
    assert line["response"]["status_code"] == 400
    assert line["response"]["body"]["type"] == "error"


async def test_a_row_that_is_refused_is_in_the_error_file(running: Service):
    content = input_lines(2) + input_lines(3, temperature="hot").splitlines(keepends=True)[2]
    created = await running.create(content)
    batch = await running.wait(created.json()["id"], "completed")
    assert batch["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert (running.counts.num_completed_rows, running.counts.num_failed_rows) == (2, 1)
    (line,) = await running.lines(batch["error_file_id"])
    assert line["custom_id"] == "row-2"
    assert line["response"]["status_code"] == 400
    assert line["response"]["body"]["error"]["param"] == "temperature"


@pytest.mark.parametrize(
    ("content", "code", "line"),
    [
        (b"", "empty_file", None),
        (b"\n\n", "empty_file", None),
        (input_lines(1) + b"{", "invalid_json_line", 2),
        (b"[1]\n", "invalid_json_line", 1),
        (input_lines(1) * 2, "duplicate_custom_id", 2),
        (input_lines(1).replace(b"row-0", b""), "missing_required_parameter", 1),
        (input_lines(1).replace(b"POST", b"GET"), "invalid_method", 1),
        (input_lines(1).replace(b"/v1/completions", b"/v1/files"), "mismatched_url", 1),
        (input_lines(1, stream=True), "unsupported_parameter", 1),
        (input_lines(1, background=True), "unsupported_parameter", 1),
        (input_lines(41), "max_requests_exceeded", None),
    ],
)
async def test_a_file_that_is_wrong_fails_the_batch_and_says_where(service: Service, content, code, line):
    created = await service.create(content)
    batch = await service.wait(created.json()["id"], "failed")
    assert (batch["errors"]["data"][0]["code"], batch["errors"]["data"][0]["line"]) == (code, line)


async def test_a_cancelled_batch_aborts_its_rows(running: Service, generator: FakeGenerator):
    generator.blocks_after = 1
    created = await running.create(input_lines(20))
    batch_id = created.json()["id"]
    await generator.has_blocked.wait()
    assert (await running.client.post(f"/v1/batches/{batch_id}/cancel")).json()["status"] == "cancelling"
    batch = await running.wait(batch_id, "cancelled")
    missing = await running.lines(batch["error_file_id"])
    assert len(missing) == 20
    assert {line["error"]["code"] for line in missing} == {"batch_cancelled"}
    assert len(generator.aborted) == len(generator.requests) == running.num_slots


async def test_a_batch_goes_on_after_the_owner_has_come_back(running: Service):
    created = await running.create(input_lines(30))
    for _ in range(5):
        await asyncio.sleep(0.05)
        running.restart()
    batch = await running.wait(created.json()["id"], "completed")
    lines = await running.lines(batch["output_file_id"])
    assert [line["custom_id"] for line in lines] == [f"row-{index}" for index in range(30)]


async def test_an_expired_batch_says_which_rows_are_missing(running: Service, generator: FakeGenerator):
    generator.blocks_after = 1
    created = await running.create(input_lines(5))
    await generator.has_blocked.wait()
    running.ahead_s = 2 * 86400.0
    batch = await running.wait(created.json()["id"], "expired")
    missing = await running.lines(batch["error_file_id"])
    assert [line["error"]["code"] for line in missing] == ["batch_expired"] * 5


async def test_rows_that_wait_and_run_are_counted(running: Service, generator: FakeGenerator):
    generator.blocks_after = 1
    running.num_slots = 1
    created = await running.create(input_lines(5))
    await until(lambda: running.counts == BatchCounts(num_open=1, num_waiting_rows=4, num_running_rows=1))
    generator.release.set()
    await running.wait(created.json()["id"], "completed")
    await until(lambda: running.counts == BatchCounts(num_completed_rows=5))


async def test_rows_wait_while_the_model_is_not_ready(running: Service, generator: FakeGenerator):
    generator.refusal = NotReady("loading", retry_after_s=0.0)
    created = await running.create(input_lines(3))
    await until(lambda: len(generator.requests) > 3)
    generator.refusal = None
    batch = await running.wait(created.json()["id"], "completed")
    assert batch["request_counts"]["completed"] == 3


async def test_files_can_be_listed_read_and_deleted(service: Service):
    ids = [(await service.upload(content, "user_data")).json()["id"] for content in (b"one", b"two\r\n--no", b"")]
    listed = (await service.client.get("/v1/files", params={"order": "asc", "limit": 2})).json()
    assert [file["id"] for file in listed["data"]] == ids[:2]
    assert listed["has_more"]
    more = (await service.client.get("/v1/files", params={"order": "asc", "after": ids[1]})).json()
    assert [file["id"] for file in more["data"]] == ids[2:]
    assert (await service.client.get(f"/v1/files/{ids[1]}/content")).content == b"two\r\n--no"
    assert (await service.client.delete(f"/v1/files/{ids[1]}")).json()["deleted"] is True
    assert (await service.client.get(f"/v1/files/{ids[1]}")).status_code == 404


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/files"}, "endpoint"),
        ({"input_file_id": 3}, "input_file_id"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "999d"}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ({"extra": 1}, "extra"),
    ],
)
async def test_a_batch_that_is_wrong_is_refused(service: Service, fields, param):
    answer = await service.create(input_lines(1), **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_a_large_file_is_allowed_on_its_path_only(service: Service):
    assert (await service.upload(b"x" * 250_000)).status_code == 200
    assert (await service.upload(b"x" * 301_000)).status_code == 413
    assert (await service.client.post("/v1/batches", content=b"x" * 250_000)).status_code == 413


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b"{}", "application/json", 415),
        (b"", "multipart/form-data; boundary=x", 400),
        (b"--x\r\n", "multipart/form-data; boundary=x", 400),
        (b"--x--\r\n", "multipart/form-data; boundary=x", 400),
        (b"--x\r\nContent-Disposition: form-data\r\n\r\n1\r\n--x--", "multipart/form-data; boundary=x", 400),
        (b"nothing", "multipart/form-data", 400),
    ],
)
async def test_a_form_that_is_wrong_is_refused(service: Service, content, content_type, status):
    answer = await service.client.post("/v1/files", content=content, headers={"content-type": content_type})
    assert answer.status_code == status
    assert answer.json()["error"]["message"]
