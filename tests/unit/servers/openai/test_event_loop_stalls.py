"""Requests that would keep the event loop, and with it every other stream, for long."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.app import build_app
from rayinfer.tokenization.chat_template import renderer

CHAT = "/v1/chat/completions"
MEMBERS = {f"argument {number}": number for number in range(90_000)}
ALLOWED_STALL_S = 0.1  # on a busy machine; such a request took half a second, and takes some milliseconds
ALLOWED_PASS_S = 0.03  # of one pass over a body of 4 MiB, which all together take 60 to 130 ms
NUM_ATTEMPTS = 3  # the machine may stall too


class RecordingTemplate:
    """Chat template that records the threads in which it renders."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def text_for(self, *, has_tools: bool) -> None:
        """Show no tools and no reasoning."""

    def render(self, messages, **settings) -> str:
        self.threads.append(threading.current_thread())
        return "hello"


@pytest.fixture
def template() -> RecordingTemplate:
    return RecordingTemplate()


@pytest.fixture
async def client_with_template(models, template) -> AsyncIterator[httpx.AsyncClient]:
    named = {name: replace(model, chat_template=template) for name, model in models.items()}
    transport = httpx.ASGITransport(build_app(named, ServiceMetrics()))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        yield client


async def longest_stall(client: httpx.AsyncClient, content: bytes) -> tuple[float, httpx.Response]:
    """Send a request; returns for how long another coroutine was held up at most, and the answer."""
    stalls: list[float] = []

    async def beat() -> None:
        while True:
            started = time.perf_counter()
            await asyncio.sleep(0)
            stalls.append(time.perf_counter() - started)

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0)  # it begins
    response = await client.post(CHAT, content=content, headers={"content-type": "application/json"})
    await asyncio.sleep(0)
    beating.cancel()
    return max(stalls), response


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": MEMBERS},
        {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"nested": MEMBERS}},
        {"messages": [{"role": "user", "content": "a"} | MEMBERS]},
        {"messages": [{"role": "user", "content": "a"}], "unknown": [[]] * 90_000},
    ],
)
async def test_a_body_of_90_000_members_holds_up_no_other_coroutine(models, body):
    renderer()  # whose first use takes a second
    content = json.dumps(body).encode()
    transport = httpx.ASGITransport(build_app(models, ServiceMetrics()))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        stalls = []
        for _ in range(NUM_ATTEMPTS):
            stall_s, response = await longest_stall(client, content)
            assert response.status_code == 400
            assert "more than 32768 lists, objects and members" in response.json()["error"]["message"]
            stalls.append(stall_s)
    assert min(stalls) < ALLOWED_STALL_S


@pytest.mark.parametrize("text", [", " * (2**21 - 100), '{[:"' * (3 * 2**18)])
async def test_a_body_of_megabytes_is_read_in_pauses_of_a_few_milliseconds(models, text):
    content = json.dumps({"messages": text}).encode()
    transport = httpx.ASGITransport(build_app(models, ServiceMetrics()))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        attempts = [await longest_stall(client, content) for _ in range(2 * NUM_ATTEMPTS)]
    assert {response.status_code for _, response in attempts} == {400}
    assert min(stall_s for stall_s, _ in attempts) < ALLOWED_PASS_S


async def test_long_bodies_are_read_in_one_thread_however_many_come_at_once(models):
    content = json.dumps({"messages": [1] * 2**17}).encode()[:-1]
    transport = httpx.ASGITransport(build_app(models, ServiceMetrics()))
    before = set(threading.enumerate())
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        posts = [client.post(CHAT, content=content, headers={"content-type": "application/json"}) for _ in range(8)]
        responses = await asyncio.gather(*posts)
    assert {response.json()["error"]["code"] for response in responses} == {"invalid_json"}
    assert len(set(threading.enumerate()) - before) == 1  # more would take turns, and leave the event loop none


async def test_a_long_conversation_is_rendered_in_a_thread_and_a_short_one_is_not(client_with_template, template):
    message = {"role": "user", "content": "a"}
    for num_messages in (4000, 4):
        response = await client_with_template.post(CHAT, json={"messages": [message] * num_messages})
        assert response.status_code == 200
    of_long, of_short = template.threads
    assert of_long is not threading.main_thread()
    assert of_short is threading.main_thread()


async def test_long_bodies_are_prepared_one_after_the_other_however_many_come_at_once(client_with_template, template):
    message = {"role": "user", "content": "a"}
    posts = [client_with_template.post(CHAT, json={"messages": [message] * 4000}) for _ in range(6)]
    assert {response.status_code for response in await asyncio.gather(*posts)} == {200}
    assert len(template.threads) == 6
    assert len(set(template.threads)) == 1


async def test_a_very_long_body_does_not_hold_up_a_long_one(client_with_template, template):
    message = {"role": "user", "content": "a"}
    for body in ({"messages": [message] * 4000}, {"messages": [message], "user": "a" * 300_000}):
        assert (await client_with_template.post(CHAT, json=body)).status_code == 200
    assert len(set(template.threads)) == 2


@pytest.mark.parametrize("name", ["bad_words", "bad\\u005fwords"])
async def test_forbidden_words_are_tokenized_in_a_thread_however_their_name_is_written(
    client_with_template, template, name
):
    content = json.dumps({"messages": [{"role": "user", "content": "a"}], "bad_words": ["b"]}).replace(
        "bad_words", name
    )
    response = await client_with_template.post(CHAT, content=content, headers={"content-type": "application/json"})
    assert response.status_code == 200
    assert template.threads[0] is not threading.main_thread()
