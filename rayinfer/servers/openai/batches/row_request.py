"""A row as a request to the application, without a connection."""

import asyncio
import json
import uuid
from typing import NamedTuple

from starlette.types import ASGIApp, Message

from rayinfer.access.caller import Caller
from rayinfer.batches.records import BatchRow
from rayinfer.servers.openai.schemas import MAX_PRIORITY

CLIENT = ("batch", 0)
RESPONSES = "/v1/responses"


class RowResponse(NamedTuple):
    """The application's answer to a row."""

    status: int
    body: bytes
    request_id: str
    retry_after_s: float | None


async def send_row(app: ASGIApp, row: BatchRow, caller: Caller) -> RowResponse:
    """Have the application answer a row; cancelled, it takes the request back as if its client had left."""
    request_id = f"batch_req_{uuid.uuid4().hex}"
    body = _unstored(row.body) if row.endpoint == RESPONSES else row.body
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": row.endpoint,
        "raw_path": row.endpoint.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"x-request-id", request_id.encode()),
        ],
        "client": CLIENT,
        "server": CLIENT,
        "state": {"caller": caller, "priority": _lowest_priority(caller)},
    }
    exchange = _Exchange(body)
    await app(scope, exchange.receive, exchange.send)
    return RowResponse(exchange.status, b"".join(exchange.parts), request_id, exchange.retry_after_s)


class _Exchange:
    """The connection's place."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._never = asyncio.Event()
        self.status = 500
        self.parts: list[bytes] = []
        self.retry_after_s: float | None = None

    async def receive(self) -> Message:
        body, self._body = self._body, None
        if body is None:
            await self._never.wait()  # the client stays until its answer is complete
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            wait = dict(message["headers"]).get(b"retry-after", b"")
            self.retry_after_s = float(wait) if wait.isdigit() else None
        else:
            self.parts.append(message.get("body", b""))


def _lowest_priority(caller: Caller) -> int:
    """Return the lowest priority that a caller's key may use."""
    return MAX_PRIORITY if caller.key is None else caller.key.limits.least_urgent


def _unstored(body: bytes) -> bytes:
    """Have a response not be kept unless the row asks for it: it is in the batch's output."""
    return json.dumps({"store": False} | json.loads(body), ensure_ascii=False).encode(errors="surrogatepass")
