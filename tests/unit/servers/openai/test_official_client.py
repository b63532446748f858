"""The official client, with its hidden strict validation on, against the application on a real port."""

import asyncio
import threading
from collections.abc import Iterator

import httpx
import openai
import pytest
import uvicorn
from fastapi import FastAPI

from fake_generator import FakeGenerator
from rayinfer.errors import QueueFull

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture
def address(app: FastAPI) -> Iterator[str]:
    """Serve the application from a thread of its own until the test is over."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="off"))
    bound = server.config.bind_socket()
    bound.listen()  # from here on clients are kept waiting, not refused, while the server comes up
    thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    server.should_exit = True
    thread.join(timeout=10)
    bound.close()


@pytest.fixture
def official(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{address}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


def test_models_are_listed_and_retrieved(official):
    listed = official.models.list().data
    assert [model.id for model in listed] == ["org/tiny"]
    assert official.models.retrieve("org/tiny") == listed[0]


def test_a_chat_streamed_and_whole(official):
    whole = official.chat.completions.create(model="org/tiny", messages=MESSAGES)
    assert whole.choices[0].message.content == "Hello there!"
    assert whole.choices[0].finish_reason == "stop"
    chunks = list(
        official.chat.completions.create(
            model="org/tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
    )
    said = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert said == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage


def test_the_clients_own_stream_gathers_the_completion(official):
    with official.chat.completions.stream(model="org/tiny", messages=MESSAGES, n=2) as stream:
        final = stream.get_final_completion()
    assert [choice.message.content for choice in final.choices] == ["Hello there!"] * 2


def test_a_completion_whole_and_streamed(official, address):
    whole = official.completions.create(model="org/tiny", prompt=["a", "b"], n=2)
    assert [choice.text for choice in whole.choices] == ["Hello there!"] * 4
    # The strict types know no chunk of a completion that has not ended, so its stream takes the lax client.
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as lax:
        chunks = list(
            lax.completions.create(
                model="org/tiny", prompt=["a", "b"], n=2, stream=True, stream_options={"include_usage": True}
            )
        )
    for index in range(4):
        parts = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert "".join(part.text for part in parts) == "Hello there!"
    assert chunks[-1].usage == whole.usage


def test_emoji_arrive_whole(official, generator):
    generator.pieces = ("Flag ", "🇯🇵", " and 👩‍👩‍👧", "!")
    chunks = official.chat.completions.create(model="org/tiny", messages=MESSAGES, stream=True)
    said = [choice.delta.content for chunk in chunks for choice in chunk.choices if choice.delta.content]
    assert said == list(generator.pieces)


def test_errors_are_the_clients_own_classes(official, generator: FakeGenerator):
    with pytest.raises(openai.NotFoundError) as missing:
        official.chat.completions.create(model="gone", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    assert missing.value.request_id
    with pytest.raises(openai.BadRequestError) as bad:
        official.chat.completions.create(model="org/tiny", messages=MESSAGES, temperature=3)
    assert bad.value.param == "temperature"
    generator.refusal = QueueFull("full")
    with pytest.raises(openai.RateLimitError):
        official.chat.completions.create(model="org/tiny", messages=MESSAGES, stream=True)


def test_a_failure_in_the_middle_of_a_stream_is_raised_by_the_client(official, generator):
    generator.failure = RuntimeError("inside")
    stream = official.chat.completions.create(model="org/tiny", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="failed to answer"):
        list(stream)


@pytest.mark.parametrize("stream", [False, True])
async def test_closing_the_connection_ends_the_generation(address, generator, stream):
    generator.blocks_after = 1
    body = {"prompt": "a", "stream": stream}
    async with httpx.AsyncClient() as client:
        asking = asyncio.ensure_future(_read(client, f"{address}/v1/completions", body))
        await _until(generator.has_blocked.is_set)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await _until(generator.has_aborted.is_set)
    assert len(generator.aborted) == 1


async def _read(client: httpx.AsyncClient, url: str, body: dict[str, object]) -> None:
    async with client.stream("POST", url, json=body) as response:
        async for _ in response.aiter_bytes():
            pass


async def _until(is_so) -> None:
    async with asyncio.timeout(5):
        while not is_so():  # noqa: ASYNC110 (what is awaited happens in the server's thread)
            await asyncio.sleep(0.005)
