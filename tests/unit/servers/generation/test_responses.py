import asyncio
import json

import pytest
from starlette.types import ASGIApp, Message

from rayinfer.errors import EngineDead, RequestFailed
from rayinfer.protocols import GenerationRequest
from rayinfer.sampling_params import SamplingParams
from rayinfer.servers.generation.prompt_outputs import generate_outputs
from rayinfer.servers.generation.responses import StreamedResponse
from rayinfer.servers.openai.chunks import COMPLETION, ChunkWriter
from rayinfer.servers.openai.response_settings import ResponseSettings
from support.fakes.fake_generator import FakeGenerator

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
TIMEOUT_S = 5.0


class Connection:
    """One HTTP request over plain ASGI, whose client can leave at any time."""

    def __init__(self, app: ASGIApp, path: str, body: dict[str, object]) -> None:
        self.sent: list[Message] = []
        self._left = asyncio.Event()
        self._body: bytes | None = json.dumps(body).encode()
        scope = {
            **{"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1"},
            **{"method": "POST", "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b""},
            **{"root_path": "", "headers": [(b"content-type", b"application/json")]},
            **{"client": ("client", 1), "server": ("service", 80)},
        }
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.sent if message["type"] == "http.response.body"]

    @property
    def text(self) -> str:
        return b"".join(body for body in self.bodies if body.startswith(b"data:")).decode()

    def leave(self) -> None:
        self._left.set()

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)


def events(text: str) -> list[object]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


async def wait_for(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), TIMEOUT_S)


@pytest.mark.parametrize(
    "fields", [{}, {"stream": True}, {"prompt": ["a", "b"]}, {"prompt": ["a", "b"], "stream": True}]
)
@pytest.mark.parametrize("blocks_after", [0, 1])
async def test_a_client_that_leaves_ends_the_generation(app, generator, fields, blocks_after):
    generator.blocks_after = blocks_after
    connection = Connection(app, TEXT, {"prompt": "a", **fields})
    await wait_for(generator.has_blocked)
    connection.leave()
    await asyncio.wait_for(connection.task, TIMEOUT_S)
    assert sorted(generator.aborted) == sorted(request.request_id for request in generator.requests)
    assert generator.finished == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_request_ends_the_generation(app, generator, stream):
    generator.blocks_after = 1
    connection = Connection(app, TEXT, {"prompt": ["a", "b"], "stream": stream})
    await wait_for(generator.has_blocked)
    connection.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(connection.task, TIMEOUT_S)
    assert len(generator.aborted) == 2


async def test_nothing_is_aborted_when_the_client_stays(client, generator):
    await client.post(TEXT, json={"prompt": ["a", "b"]})
    await client.post(TEXT, json={"prompt": "a", "stream": True})
    assert generator.aborted == []
    assert len(generator.finished) == 3


async def test_a_stream_begins_with_its_first_output_and_not_before(app, generator):
    generator.blocks_after = 0
    connection = Connection(app, CHAT, {**HELLO, "stream": True})
    await wait_for(generator.has_blocked)
    assert connection.sent == []
    generator.release.set()
    await asyncio.wait_for(connection.task, TIMEOUT_S)
    assert connection.sent[0]["status"] == 200
    assert connection.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


async def test_every_output_is_sent_as_soon_as_it_is_there(app, generator):
    generator.blocks_after = 1
    connection = Connection(app, TEXT, {"prompt": "a", "stream": True})
    await wait_for(generator.has_blocked)
    assert b'"text":"Hello"' in connection.sent[-1]["body"]
    generator.release.set()
    await asyncio.wait_for(connection.task, TIMEOUT_S)


def streamed_response(generator: FakeGenerator, **settings: float) -> StreamedResponse:
    request = GenerationRequest(request_id="a", prompt_token_ids=[1], sampling_params=SamplingParams())
    response_settings = ResponseSettings(id="cmpl-a", created=1, model="tiny", prompts=[[1]], num_choices=1)
    return StreamedResponse(
        generate_outputs(generator, [request]), ChunkWriter(response_settings, COMPLETION), **settings
    )


async def test_a_stream_that_has_begun_says_in_long_silences_that_it_is_still_there(generator):
    generator.blocks_after = 1
    connection = Connection(streamed_response(generator, keep_alive_check_s=0.001), TEXT, {})
    await wait_for(generator.has_blocked)
    async with asyncio.timeout(TIMEOUT_S):
        while connection.bodies.count(b": keep-alive\n\n") < 3:  # noqa: ASYNC110 - silence has no event
            await asyncio.sleep(0.001)
    generator.release.set()
    await asyncio.wait_for(connection.task, TIMEOUT_S)
    assert events(connection.text)[-1] == "[DONE]"
    num_sent = len(connection.sent)
    assert connection.sent[-1]["more_body"] is False
    await asyncio.sleep(0.01)
    assert len(connection.sent) == num_sent


@pytest.mark.parametrize("blocks_after", [0, None])
async def test_no_comment_comes_before_the_first_output_or_while_there_is_news(generator, blocks_after):
    generator.blocks_after = blocks_after
    connection = Connection(streamed_response(generator, keep_alive_check_s=0.001), TEXT, {})
    if blocks_after is not None:
        await wait_for(generator.has_blocked)
        await asyncio.sleep(0.02)
        assert connection.sent == []
        generator.release.set()
    await asyncio.wait_for(connection.task, TIMEOUT_S)
    assert b": keep-alive\n\n" not in connection.bodies


async def test_a_stream_and_a_whole_answer_say_and_count_the_same(client, generator):
    generator.pieces, generator.num_cached_tokens = ("日", "", "本 🇯🇵", "."), 2
    for path, body in ((TEXT, {"prompt": ["a b", "c"], "n": 3}), (CHAT, {**HELLO, "n": 3})):
        whole = (await client.post(path, json=body)).json()
        options = {"stream": True, "stream_options": {"include_usage": True}}
        streamed = events((await client.post(path, json={**body, **options})).text)
        assert streamed[-1] == "[DONE]"
        assert streamed[-2]["choices"] == []
        assert streamed[-2]["usage"] == whole["usage"]
        assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in streamed[:-1]}) == 1
        for choice in whole["choices"]:
            mine = [chunk["choices"][0] for chunk in streamed[:-2] if chunk["choices"][0]["index"] == choice["index"]]
            said = "".join(part["text"] if path == TEXT else part["delta"].get("content", "") for part in mine)
            assert said == (choice["text"] if path == TEXT else choice["message"]["content"])
            assert [part["finish_reason"] for part in mine] == [None] * (len(mine) - 1) + [choice["finish_reason"]]


async def test_a_chat_stream_begins_every_choice_with_its_role_and_ends_it_with_an_empty_delta(client):
    streamed = events((await client.post(CHAT, json={**HELLO, "stream": True, "n": 2})).text)
    parts = [chunk["choices"][0] for chunk in streamed[:-1]]
    for index in (0, 1):
        deltas = [part["delta"] for part in parts if part["index"] == index]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert deltas[-1] == {}
        assert all("role" not in delta for delta in deltas[1:])


async def test_a_stream_has_headers_that_keep_proxies_from_holding_it_back(client):
    response = await client.post(CHAT, json={**HELLO, "stream": True}, headers={"x-request-id": "mine"})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-request-id"] == "mine"
    assert "content-length" not in response.headers


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (EngineDead("gone"), "engine_dead"),
        (RequestFailed("/srv/x"), "generation_failed"),
        (KeyError("x"), "internal_error"),
    ],
)
async def test_a_failure_after_the_first_output_is_sent_in_the_stream(client, generator, failure, code):
    generator.failure = failure
    response = await client.post(CHAT, json={**HELLO, "stream": True})
    streamed = events(response.text)
    assert response.status_code == 200
    assert streamed[-1] == "[DONE]"
    assert set(streamed[-2]["error"]) == {"message", "type", "param", "code"}
    assert streamed[-2]["error"]["code"] == code
    assert "srv" not in response.text


@pytest.mark.parametrize(
    ("reason", "code"), [("timeout", "timeout"), ("error", "generation_failed"), (None, "generation_failed")]
)
async def test_a_failed_choice_is_an_error_event_of_the_stream(client, generator, reason, code):
    generator.finish_reason = reason
    streamed = events((await client.post(TEXT, json={"prompt": "a", "stream": True})).text)
    assert [streamed[-2]["error"]["code"], streamed[-1]] == [code, "[DONE]"]


async def test_a_bad_end_without_any_output_before_it_is_a_status(client, generator):
    generator.pieces, generator.finish_reason = ("",), "timeout"
    response = await client.post(TEXT, json={"prompt": "a", "stream": True})
    assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")


async def test_a_generator_without_outputs_is_an_inner_failure(client, generator):
    generator.pieces = ()
    for stream in (False, True):
        response = await client.post(TEXT, json={"prompt": "a", "stream": stream})
        assert (response.status_code, response.json()["error"]["code"]) == (500, "generation_failed")


async def test_a_failure_of_one_prompt_ends_the_others(client, generator):
    generator.failure = RequestFailed("one")
    response = await client.post(TEXT, json={"prompt": ["a", "b", "c"]})
    assert response.status_code == 500
    assert len(generator.requests) == 3
    assert generator.finished == []


async def test_many_prompts_with_long_answers_do_not_pile_up_or_get_lost(client, generator: FakeGenerator):
    generator.pieces = ("x",) * 300
    body = (await client.post(TEXT, json={"prompt": ["a"] * 20})).json()
    assert {choice["text"] for choice in body["choices"]} == {"x" * 300}
