"""The official client, with its hidden strict validation on, against the application on a real port."""

import asyncio
from collections.abc import Iterator

import httpx
import openai
import pytest
from fastapi import FastAPI

from rayinfer.errors import QueueFull
from support.fakes.fake_generator import FakeGenerator
from support.services.polling import until
from support.services.served_application import served

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture
def address(app: FastAPI) -> Iterator[str]:
    """Serve the application from a thread of its own until the test is over."""
    with served(app) as address:
        yield address


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


def test_a_chats_log_probabilities_whole_and_streamed(official):
    asked = {"model": "org/tiny", "messages": MESSAGES, "logprobs": True, "top_logprobs": 2}
    (choice,) = official.chat.completions.create(**asked).choices
    content = choice.logprobs.content
    assert [token.logprob for token in content] == [-1.0] * 3
    assert [[top.logprob for top in token.top_logprobs] for token in content] == [[-0.5, -1.0]] * 3
    assert all(token.token == bytes(token.bytes).decode() == token.top_logprobs[1].token for token in content)
    chunks = list(official.chat.completions.create(**asked, stream=True))
    parts = [part for chunk in chunks for part in chunk.choices]
    assert [token for part in parts if part.logprobs for token in part.logprobs.content] == content
    with official.chat.completions.stream(**asked) as stream:
        assert stream.get_final_completion().choices[0].logprobs.content == content


def test_a_completions_log_probabilities_whole_and_streamed(official, address):
    asked = {"model": "org/tiny", "prompt": "hello", "logprobs": 2}
    reported = official.completions.create(**asked).choices[0].logprobs
    assert reported.token_logprobs == [-1.0] * 3
    assert [sorted(top.values()) for top in reported.top_logprobs] == [[-1.0, -0.5]] * 3
    # The strict types know neither a chunk that has not ended nor the null of an echoed prompt's first token.
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as lax:
        chunks = list(lax.completions.create(**asked, stream=True))
        echoed = lax.completions.create(**asked, echo=True, max_tokens=0)
    parts = [part.logprobs for chunk in chunks for part in chunk.choices if part.logprobs]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [value for part in parts for value in getattr(part, name)] == getattr(reported, name)
    assert echoed.choices[0].text == "hello"
    assert echoed.choices[0].logprobs.token_logprobs[0] is None
    assert echoed.usage.completion_tokens == 0


def test_what_openai_has_no_word_for_comes_along(official):
    extensions = {"return_token_ids": True, "prompt_logprobs": 0, "return_tokens_as_token_ids": True}
    whole = official.chat.completions.create(model="org/tiny", messages=MESSAGES, logprobs=True, extra_body=extensions)
    assert [token.token for token in whole.choices[0].logprobs.content] == ["token_id:10", "token_id:11", "token_id:12"]
    assert whole.choices[0].token_ids == [10, 11, 12]
    assert len(whole.prompt_logprobs) == len(whole.prompt_token_ids)


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
        await until(generator.has_blocked.is_set)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await until(generator.has_aborted.is_set)
    assert len(generator.aborted) == 1


async def _read(client: httpx.AsyncClient, url: str, body: dict[str, object]) -> None:
    async with client.stream("POST", url, json=body) as response:
        async for _ in response.aiter_bytes():
            pass
