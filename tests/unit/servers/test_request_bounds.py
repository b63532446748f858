import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest
from starlette.types import Message, Receive, Scope, Send

from rayinfer.errors import RequestError
from rayinfer.servers.request_bounds import BoundedRequests, RequestBounds

SMALL = {"max_headers": 4, "max_header_bytes": 200, "max_body_bytes": 1000}
QUICK_PARTS = RequestBounds(**SMALL, max_body_gap_s=0.2, body_grace_s=60.0)
QUICK_WHOLE = RequestBounds(**SMALL, max_body_gap_s=60.0, body_grace_s=0.3, min_body_bytes_per_s=300.0)
PATIENT = RequestBounds(**SMALL)
CEILING_S = 10.0


@dataclass
class Application:
    """Application that reads a whole body, answers with its length, and records its requests."""

    headers: dict[bytes, bytes] | None = None
    received: list[str] = field(default_factory=list)
    answers_first: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers = dict(scope["headers"])
        if self.answers_first:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        length, more = 0, scope["type"] == "http"
        while more:
            message = await receive()
            self.received.append(message["type"])
            length += len(message.get("body", b""))
            more = message.get("more_body", False)
        if not self.answers_first:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(length).encode()})


@dataclass
class Answer:
    """HTTP response of the application under test."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["error"]["code"])


async def parts_of(parts: Sequence[bytes], pause_s: float, *, is_complete: bool) -> AsyncIterator[Message]:
    for number, part in enumerate(parts, start=1):
        yield {"type": "http.request", "body": part, "more_body": number < len(parts) or not is_complete}
        await asyncio.sleep(pause_s)
    await asyncio.Event().wait()


async def ask(
    app: Application,
    bounds: RequestBounds = PATIENT,
    headers: Sequence[tuple[bytes, bytes]] = (),
    parts: Sequence[bytes] = (b"",),
    pause_s: float = 0.0,
    is_complete: bool = True,
    refusals: list[RequestError] | None = None,
    **scope: object,
) -> Answer:
    sent: list[Message] = []
    coming = parts_of(parts, pause_s, is_complete=is_complete)

    async def send(message: Message) -> None:
        sent.append(message)

    whole_scope: Scope = {"type": "http", "raw_path": b"/", "query_string": b"", "headers": list(headers), **scope}
    on_refusal = (lambda _: None) if refusals is None else refusals.append
    async with asyncio.timeout(CEILING_S):
        await BoundedRequests(app, bounds, on_refusal)(whole_scope, coming.__anext__, send)
    start = sent[0]
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return Answer(start["status"], dict(start["headers"]), body)


async def test_a_request_inside_its_bounds_passes_as_it_came():
    app = Application()
    headers = [(b"content-type", b"a"), (b"serve_multiplexed_model_id", b"\xc3\xa4"), (b"x-other", b"\xff")]
    answer = await ask(app, headers=headers, parts=[b"ab", b"c"])
    assert (answer.status, answer.body, app.headers) == (200, b"3", dict(headers))


async def test_orders_to_serve_never_arrive():
    app = Application()
    for kind in ("http", "websocket"):
        headers = [(b"x-request-disconnect-disabled", b"?1"), (b"x-request-timeout-seconds", b"nan"), (b"host", b"a")]
        await ask(app, headers=headers, type=kind)
        assert app.headers == {b"host": b"a"}


@pytest.mark.parametrize(
    "name",
    [
        b"x-request-id",
        b"x-request-timeout-seconds",
        b"x-request-disconnect-disabled",
        b"serve_multiplexed_model_id",
        b"serve-multiplexed-model-id",
        b"x-session-id",
        b"x_session_id",
        b"traceparent",
        b"tracestate",
    ],
)
async def test_what_serve_would_fail_to_decode_never_arrives(name):
    app = Application()
    await ask(app, headers=[(name, b"\xff\xfe"), (b"host", b"a")])
    assert app.headers == {b"host": b"a"}


async def test_a_requests_name_arrives_cleaned():
    app = Application()
    await ask(app, headers=[(b"x-request-id", b"a\xff b\n<c>")])
    assert app.headers == {b"x-request-id": b"abc"}


@pytest.mark.parametrize(
    ("headers", "scope"),
    [
        ([(b"a", b"1")] * 5, {}),
        ([(b"a", b"1" * 200)], {}),
        ([(b"a" * 200, b"1")], {}),
        ([], {"raw_path": b"/" * 201}),
        ([], {"query_string": b"a" * 200}),
        ([(b"a", b"1" * 99), (b"b", b"1" * 50)], {"raw_path": b"/" * 50}),
    ],
)
async def test_too_many_or_too_large_headers_are_431(headers, scope):
    app, refusals = Application(), []
    answer = await ask(app, headers=headers, refusals=refusals, **scope)
    assert (answer.status, answer.code, answer.headers[b"connection"]) == (431, "headers_too_large", b"close")
    assert (app.headers, len(refusals)) == (None, 1)


async def test_headers_at_the_limit_pass():
    assert (await ask(Application(), headers=[(b"a", b"1")] * 4)).status == 200
    assert (await ask(Application(), headers=[(b"a", b"1" * 198)])).status == 200


async def test_a_refusal_carries_the_clients_own_name_for_the_request():
    answer = await ask(Application(), headers=[(b"x-request-id", b"mi ne"), (b"a", b"1" * 200)])
    assert (answer.status, answer.headers[b"x-request-id"]) == (431, b"mine")


@pytest.mark.parametrize("length", [b"1001", b"9" * 5000])
async def test_a_content_length_above_the_limit_is_413_before_the_application_runs(length):
    app = Application()
    bounds = RequestBounds(max_body_bytes=1000)
    answer = await ask(app, bounds, headers=[(b"content-length", length)])
    assert (answer.status, answer.code, app.headers) == (413, "request_too_large", None)


async def test_a_body_that_grows_beyond_the_limit_is_413_and_disconnects_the_application():
    app, refusals = Application(), []
    answer = await ask(app, parts=[b"x" * 500] * 3, refusals=refusals)
    assert (answer.status, answer.code, answer.headers[b"connection"]) == (413, "request_too_large", b"close")
    assert (app.received, len(refusals)) == (["http.request", "http.request", "http.disconnect"], 1)


async def test_a_body_that_stops_coming_is_408():
    app = Application()
    answer = await ask(app, QUICK_PARTS, parts=[b"x" * 900], is_complete=False)
    assert (answer.status, answer.code, answer.headers[b"connection"]) == (408, "request_too_slow", b"close")
    assert app.received == ["http.request", "http.disconnect"]


async def test_a_body_that_never_begins_is_408():
    assert (await ask(Application(), QUICK_PARTS, parts=[], is_complete=False)).status == 408


async def test_a_body_that_drips_is_408_although_it_never_stops():
    app = Application()
    answer = await ask(app, QUICK_WHOLE, parts=[b"x"] * 900, pause_s=0.01)
    assert (answer.status, answer.code) == (408, "request_too_slow")
    assert 1 < len(app.received) < 500


async def test_a_body_that_comes_steadily_may_take_longer_than_the_grace():
    answer = await ask(Application(), QUICK_WHOLE, parts=[b"x" * 90] * 10, pause_s=0.05)
    assert (answer.status, answer.body) == (200, b"900")


async def test_only_waiting_for_the_client_counts_as_its_time():
    async def slow_reader(scope: Scope, receive: Receive, send: Send) -> None:
        for _ in range(3):
            await receive()
            await asyncio.sleep(0.4)
        await Application()(scope, receive, send)

    answer = await ask(slow_reader, QUICK_WHOLE, parts=[b"x"] * 5)  # type: ignore[arg-type]
    assert answer.status == 200


async def test_behind_a_whole_body_a_client_may_stay_silent_as_long_as_it_likes():
    async def waits_for_the_client_to_leave(scope: Scope, receive: Receive, send: Send) -> None:
        assert not (await receive())["more_body"]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.4):
                await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    assert (await ask(waits_for_the_client_to_leave, QUICK_PARTS)).status == 200  # type: ignore[arg-type]


async def test_an_answer_that_has_begun_is_left_incomplete_by_a_refusal():
    answer = await ask(Application(answers_first=True), parts=[b"x" * 600] * 2)
    assert (answer.status, answer.body) == (200, b"")
