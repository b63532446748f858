import asyncio
import time

import httpx
import pytest

from rayinfer import AsyncInferenceClient, SamplingParams
from rayinfer.errors import (
    InvalidParameter,
    NotReady,
    PromptTooLong,
    QueueFull,
    RequestFailed,
    RequestTimedOut,
    Unavailable,
    UnknownModel,
)

CONVERSATION = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def client(address):
    async with AsyncInferenceClient(address, max_retries=0) as client:
        yield client


async def until(is_so) -> None:
    async with asyncio.timeout(5):
        while not is_so():  # noqa: ASYNC110 (what is awaited happens in the server's thread)
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("prompt", ["hello", [10, 11], CONVERSATION])
async def test_texts_token_ids_and_conversations_are_answered_whole_and_streamed(client, generator, prompt):
    generator.num_cached_tokens = 1
    whole = await client.generate(prompt)
    assert [(each.text, each.token_ids, each.finish_reason) for each in whole.outputs] == [
        ("Hello there!", [10, 11, 12], "stop")
    ]
    assert whole.prompt_token_ids == generator.requests[0].prompt_token_ids
    assert (whole.finished, whole.num_cached_tokens) == (True, 1)
    outputs = [output async for output in client.stream(prompt)]
    assert "".join(each.text for output in outputs for each in output.outputs) == "Hello there!"
    assert [token for output in outputs for each in output.outputs for token in each.token_ids] == [10, 11, 12]
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert outputs[-1].num_cached_tokens == 1
    assert outputs[-1].prompt_token_ids == whole.prompt_token_ids


PARAMS = SamplingParams(
    n=2,
    temperature=0.5,
    top_p=0.9,
    min_p=0.1,
    presence_penalty=0.5,
    logit_bias={5: 1.5},
    seed=2**63 + 1,
    max_tokens=9,
    min_tokens=2,
    stop=["x", "y"],
    stop_token_ids=[3],
    ignore_eos=True,
    skip_special_tokens=False,
)


@pytest.mark.parametrize("prompt", ["hello", CONVERSATION])
async def test_all_sampling_parameters_arrive(client, generator, prompt):
    outputs = (await client.generate(prompt, PARAMS)).outputs
    assert [each.text for each in outputs] == ["Hello there!"] * 2
    assert generator.requests[-1].sampling_params == PARAMS
    await client.generate(prompt, SamplingParams(max_tokens=5))
    assert generator.requests[-1].sampling_params == SamplingParams(max_tokens=5)  # no default of the model
    await client.generate(prompt)
    assert generator.requests[-1].sampling_params.temperature == 0.3


async def test_options_are_sent(client, generator):
    output = await client.generate("hello", priority=3, request_id="mine", cache_salt="salt", model="org/tiny")
    assert output.request_id == "cmpl-mine"
    (request,) = generator.requests
    assert (request.priority, request.cache_salt) == (3, "salt")
    assert await client.models() == ["org/tiny"]


async def test_futures_are_answered_side_by_side(client):
    outputs = await asyncio.gather(*(client.submit("hello") for _ in range(20)))
    assert {output.outputs[0].text for output in outputs} == {"Hello there!"}


async def test_an_aborted_request_ends_in_the_service(client, generator):
    generator.blocks_after = 1
    future = client.submit("hello")
    await until(generator.has_blocked.is_set)
    client.abort(future)
    await until(generator.has_aborted.is_set)
    with pytest.raises(asyncio.CancelledError):
        await future


async def test_a_closed_stream_ends_in_the_service(client, generator):
    generator.blocks_after = 1
    stream = client.stream("hello")
    assert (await anext(stream)).outputs[0].text == "Hello"
    await stream.aclose()
    await until(generator.has_aborted.is_set)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ({"prompt": "hello", "model": "gone"}, UnknownModel),
        ({"prompt": "hello " * 400}, PromptTooLong),
        ({"prompt": "hello", "priority": 11}, InvalidParameter),
        ({"prompt": ""}, InvalidParameter),
        ({"prompt": []}, InvalidParameter),
        ({"prompt": "a", "params": SamplingParams(logprobs=1)}, InvalidParameter),
        ({"prompt": "a", "params": SamplingParams(bad_token_sequences=[[1]])}, InvalidParameter),
    ],
)
async def test_refusals_are_raised_by_their_class(client, generator, call, error):
    with pytest.raises(error):
        await client.generate(**call)
    with pytest.raises(error):
        await anext(client.stream(**call))
    assert generator.requests == []


@pytest.mark.parametrize(
    "error", [QueueFull("full"), NotReady("starting"), RequestFailed("no"), RequestTimedOut("late")]
)
async def test_failures_are_raised_by_their_class(client, generator, error):
    generator.refusal = error
    with pytest.raises(type(error)):
        await client.submit("hello")
    with pytest.raises(type(error)):
        await anext(client.stream("hello"))


async def test_a_failure_within_a_stream_is_raised_after_its_outputs(client, generator):
    generator.failure = QueueFull("full")
    stream = client.stream("hello")
    assert (await anext(stream)).outputs[0].text == "Hello"
    with pytest.raises(QueueFull):
        await anext(stream)


async def test_a_service_that_is_silent_for_too_long_is_left(address, generator):
    generator.blocks_after = 0
    async with AsyncInferenceClient(address, timeout_s=0.2) as client:
        with pytest.raises(RequestTimedOut):
            await client.generate("hello")
    await until(generator.has_aborted.is_set)


async def test_operators_pause_and_resume(client):
    assert not await client.is_paused()
    await client.pause()
    assert await client.is_paused("org/tiny")
    await client.resume("org/tiny")
    assert not await client.is_paused()


class Refusals(httpx.AsyncBaseTransport):
    """A service that refuses the first requests."""

    def __init__(self, num_refused: int, status: int = 429, retry_after: str = "0.05") -> None:
        self.requests: list[httpx.Request] = []
        self._num_refused = num_refused
        self._refusal = (status, {"Retry-After": retry_after})

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if len(self.requests) <= self._num_refused:
            status, headers = self._refusal
            return httpx.Response(status, headers=headers, json={"error": {"message": "full"}})
        return httpx.Response(200, json={"data": [{"id": "m"}]})


async def test_a_full_service_is_asked_again_after_the_time_it_names():
    service = Refusals(2)
    async with AsyncInferenceClient(transport=service, api_key="secret") as client:
        started = time.monotonic()
        assert await client.models() == ["m"]
    assert time.monotonic() - started >= 0.1
    assert [request.headers["authorization"] for request in service.requests] == ["Bearer secret"] * 3


@pytest.mark.parametrize(
    ("service", "num_requests", "error"),
    [
        (Refusals(9, 503, "0"), 3, Unavailable),
        (Refusals(9, 429, "1000"), 1, QueueFull),  # longer than anyone waits
        (Refusals(9, 500), 1, RequestFailed),
        (Refusals(9, 504), 1, RequestTimedOut),
    ],
)
async def test_retries_end(service, num_requests, error):
    async with AsyncInferenceClient(transport=service) as client:
        with pytest.raises(error):
            await client.models()
    assert len(service.requests) == num_requests


@pytest.mark.parametrize(
    "content", [b"", b"data: {}\n\n", b"data: x\n\n", b'data: {"choices": 1}\n\n', b"data: [DONE]\n\n"]
)
async def test_streams_of_something_else_are_errors(content):
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=content))
    async with AsyncInferenceClient(transport=transport) as client:
        with pytest.raises(RequestFailed):
            [output async for output in client.stream("hello")]


async def test_a_service_that_is_not_there_is_unavailable():
    async with AsyncInferenceClient("http://127.0.0.1:9", max_retries=1) as client:
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9"):
            await client.generate("hello")
