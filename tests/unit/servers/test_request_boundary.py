import asyncio
from collections.abc import AsyncIterator

import httpx
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.app import build_app
from rayinfer.servers.request_boundary import RequestBoundary
from rayinfer.servers.request_bounds import RequestBounds


async def chunks(size: int, count: int, sent: list[int]) -> AsyncIterator[bytes]:
    for _ in range(count):
        sent.append(size)
        yield b"x" * size


class EchoLength:
    """Application that reads the whole body and answers with its length."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length, more = 0, True
        while more:
            message = await receive()
            length += len(message["body"])
            more = message["more_body"]
        await PlainTextResponse(str(length))(scope, receive, send)


def client_of(app: object, max_body_bytes: int = 100) -> httpx.AsyncClient:
    bounds = RequestBounds(max_body_bytes=max_body_bytes)
    edge = RequestBoundary(app, metrics=ServiceMetrics(), bounds=bounds)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=httpx.ASGITransport(edge), base_url="http://service")


async def test_a_body_at_the_limit_passes_and_one_above_it_is_413():
    async with client_of(EchoLength()) as client:
        assert (await client.post("/", content=b"x" * 100)).text == "100"
        response = await client.post("/", content=b"x" * 101)
    assert response.status_code == 413
    assert response.headers["connection"] == "close"
    assert response.json()["error"] == {
        "message": "The request's body is larger than 100 bytes.",
        "type": "invalid_request_error",
        "param": None,
        "code": "request_too_large",
    }


async def test_an_announced_length_above_the_limit_is_refused_before_anything_is_read():
    sent: list[int] = []
    async with client_of(EchoLength()) as client:
        for length in ("101", "9" * 40):
            headers = {"content-length": length}
            assert (await client.post("/", content=chunks(1, 1, sent), headers=headers)).status_code == 413
    assert sent == []


async def test_a_chunked_body_is_refused_as_soon_as_it_passes_the_limit():
    sent: list[int] = []
    async with client_of(EchoLength()) as client:
        assert (await client.post("/", content=chunks(40, 2, []))).text == "80"
        assert (await client.post("/", content=chunks(40, 1000, sent))).status_code == 413
    assert len(sent) == 3


async def test_a_chunked_body_over_the_limit_is_413_through_the_whole_application(client, metrics):
    response = await client.post(
        "/v1/completions", content=chunks(1000, 1000, []), headers={"content-type": "application/json"}
    )
    assert response.status_code == 413
    assert b'rayinfer_requests_refused_total{reason="request_too_large"} 1.0' in metrics.render()


async def test_every_answer_carries_the_clients_request_id_cleaned(client):
    for path in ("/health", "/v1/nothing"):
        assert (await client.get(path, headers={"x-request-id": "abc-1_2.3:4"})).headers[
            "x-request-id"
        ] == "abc-1_2.3:4"
    dirty = await client.get("/health", headers={"x-request-id": "a b<c>" + "d" * 300})
    assert dirty.headers["x-request-id"] == "abc" + "d" * 125
    raw = await client.get("/health", headers={b"x-request-id": b"\xff\xfeok"})
    assert raw.headers["x-request-id"] == "ok"


async def test_without_a_request_id_every_request_gets_its_own(client):
    names = {(await client.get("/health")).headers["x-request-id"] for _ in range(3)}
    assert len(names) == 3


async def test_behind_a_proxy_that_adds_the_request_id_it_is_not_added_twice(models, metrics):
    app = build_app(models, metrics, echoes_request_id=False)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
        response = await client.post("/v1/completions", json={"prompt": "hi"}, headers={"x-request-id": "mine"})
    assert "x-request-id" not in response.headers
    assert response.json()["id"] == "cmpl-mine"


async def test_a_failure_of_the_application_is_a_neutral_500():
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("in /srv/app.py")

    async with client_of(broken) as client:
        response = await client.get("/")
    assert response.status_code == 500
    assert "srv" not in response.text


async def test_a_failure_after_the_answer_began_does_not_begin_another():
    sent: list[Message] = []

    async def half(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError("late")

    async def send(message: Message) -> None:
        sent.append(message)

    edge = RequestBoundary(half, metrics=ServiceMetrics(), bounds=RequestBounds())
    await edge({"type": "http", "headers": []}, asyncio.Queue[Message]().get, send)
    assert [message["type"] for message in sent] == ["http.response.start"]
