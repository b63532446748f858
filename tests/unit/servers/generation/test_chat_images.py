"""Images in conversations over HTTP, by every protocol, on engines that compute: answers, limits and refusals."""

import asyncio
import base64
import contextlib
import re
import struct
import time
import zlib

import httpx
import pytest

from rayinfer import LLM, SamplingParams
from rayinfer.benchmark.control_plane.overhead.hostile_images import hostile_images, image_bodies
from rayinfer.config import engine_config
from rayinfer.engine.build import build_engine
from rayinfer.engine.loop.async_engine import AsyncEngine
from rayinfer.images.prompts import ImagePrompts
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.routing.dispatch import Dispatcher
from rayinfer.servers.app import ServedModel, build_app
from rayinfer.servers.request_limits import RequestLimits
from rayinfer.tokenization.chat_template import ChatTemplate
from rayinfer.tokenization.tokenizer import Tokenizer
from support.services.polling import until
from support.tiny_models.tiny_vision import encoded, make_tiny_vision_model, picture_of

SETTINGS = {"dtype": "float32", "num_kv_blocks": 200, "block_size": 8, "num_threads": 1}
IMAGE = picture_of(60, 40)
TEXT = "What is this?"
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_vision_model(tmp_path_factory.mktemp("vision"))


@contextlib.asynccontextmanager
async def serving(folder, *, num_engines=1, limits=None):
    """A client of an application over a router and engines in this process, and the engines."""
    engines = [
        AsyncEngine(build_engine(engine_config(model=str(folder), **SETTINGS), folder)) for _ in range(num_engines)
    ]
    metrics, tokenizer = ServiceMetrics(), Tokenizer.from_folder(folder)
    router = Dispatcher("vision", tokenizer, metrics, router_id="router")
    model = ServedModel(
        name="vision",
        generator=router,
        tokenizer=tokenizer,
        chat_template=ChatTemplate.from_folder(folder),
        created=0,
        image_prompts=ImagePrompts.from_folder(folder),
    )
    app = build_app({"vision": model}, metrics, request_limits=limits or RequestLimits())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    try:
        for number, engine in enumerate(engines):
            engine.start()
            router.engines.add(f"engine-{number}", engine, engine.description)
        async with httpx.AsyncClient(transport=transport, base_url="http://service", timeout=120) as client:
            yield client, router, engines
    finally:
        await router.close()
        await asyncio.gather(*(engine.shutdown() for engine in engines))


def data_url(content, kind="png"):
    return f"data:image/{kind};base64," + base64.b64encode(content).decode()


def chat_body(*urls, **settings):
    parts = [{"type": "image_url", "image_url": {"url": url, "detail": "auto"}} for url in urls]
    content = [*parts, {"type": "text", "text": TEXT}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0} | settings


def png_header(width, height):
    data = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + data
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(data)) + chunk + struct.pack(">I", zlib.crc32(chunk))


async def test_all_protocols_answer_as_the_model_in_python(folder):
    params = SamplingParams(temperature=0.0, max_tokens=8)
    with LLM(str(folder), **SETTINGS) as llm:
        content = [{"type": "image", "image": IMAGE}, {"type": "text", "text": TEXT}]
        (wanted,) = llm.chat([{"role": "user", "content": content}], params, use_tqdm=False)
    text, num_tokens = wanted.outputs[0].text, len(wanted.prompt_token_ids)
    content = encoded(IMAGE)
    async with serving(folder) as (client, _, engines):
        chat = (await client.post(CHAT, json=chat_body(data_url(content)))).json()
        assert chat["choices"][0]["message"]["content"] == text
        assert chat["usage"]["prompt_tokens"] == num_tokens
        parts = [{"type": "input_image", "image_url": data_url(content)}, {"type": "input_text", "text": TEXT}]
        body = {"input": [{"role": "user", "content": parts}], "max_output_tokens": 8, "temperature": 0}
        response = (await client.post(RESPONSES, json=body)).json()
        assert response["output"][-1]["content"][0]["text"] == text
        assert response["usage"]["input_tokens"] == num_tokens
        source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(content).decode()}
        parts = [{"type": "image", "source": source}, {"type": "text", "text": TEXT}]
        body = {"model": "vision", "messages": [{"role": "user", "content": parts}], "max_tokens": 8, "temperature": 0}
        message = (await client.post(MESSAGES, json=body)).json()
        assert message["content"][0]["text"] == text
        assert engines[0].stats.prompt_tokens_total == 3 * num_tokens
        settings = {"model": "vision", "stream": False, "options": {"num_predict": 8, "temperature": 0}}
        image = base64.b64encode(content).decode()
        body = {"messages": [{"role": "user", "content": TEXT, "images": [image]}]}
        answer = (await client.post("/api/chat", json=settings | body)).json()
        assert (answer["message"]["content"], answer["prompt_eval_count"]) == (text, num_tokens)
        answer = (await client.post("/api/generate", json=settings | {"prompt": TEXT, "images": [image]})).json()
        assert (answer["response"], answer["prompt_eval_count"]) == (text, num_tokens)
        assert "vision" in (await client.post("/api/show", json={"model": "vision"})).json()["capabilities"]
        tokens = (await client.post("/tokenize", json=chat_body(data_url(content)))).json()
        assert tokens["tokens"] == wanted.prompt_token_ids
        (card,) = (await client.get("/v1/models")).json()["data"]
        assert card["input_modalities"] == ["text", "image"]
        limits = {"max_images": 8, "max_bytes": 10_485_760, "max_pixels": 25_000_000, "max_side": 8192}
        assert card["image_limits"] == limits


async def test_an_image_in_a_tools_result_is_read_in_the_users_message_behind_it(folder):
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(encoded(IMAGE)).decode()}
    seen = [{"type": "text", "text": "A picture."}, {"type": "image", "source": source}]
    asked = {"role": "user", "content": "What is there?"}
    called = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": seen}
    result_parts = [result, {"type": "text", "text": TEXT}]
    body = {"model": "vision", "max_tokens": 8, "temperature": 0}
    messages = [asked, {"role": "assistant", "content": [called]}, {"role": "user", "content": result_parts}]
    function = {"name": "look", "arguments": "{}"}
    same = [
        asked,
        {"role": "assistant", "content": "", "tool_calls": [{"id": "t1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "t1", "content": "A picture."},
        chat_body(data_url(encoded(IMAGE)))["messages"][0],
    ]
    async with serving(folder) as (client, _, _):
        answer = (await client.post(MESSAGES, json=body | {"messages": messages})).json()
        wanted = (await client.post(CHAT, json=body | {"messages": same})).json()
        assert answer["content"][0]["text"] == wanted["choices"][0]["message"]["content"]
        assert answer["usage"]["input_tokens"] == wanted["usage"]["prompt_tokens"] > 30
        source["data"] = base64.b64encode(encoded(IMAGE)[:-300]).decode()
        refused = await client.post(MESSAGES, json=body | {"messages": messages})
        assert (refused.status_code, "the image is broken" in refused.text) == (400, True)


HOSTILE = {
    "bomb of 100 gigapixels": (data_url(png_header(316_228, 316_228)), "8192 pixels a side"),
    "cut off": (data_url(encoded(IMAGE)[:-300]), "the image is broken"),
    "svg": (data_url(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "svg+xml"), "must be an image: JPEG, PNG or WebP"),
    "loopback": ("http://127.0.0.1:8000/metrics", "not fetched from URLs"),
    "metadata service": ("http://169.254.169.254/latest", "not fetched from URLs"),
    "file": ("file:///etc/passwd", "not fetched from URLs of 'file'"),
    "loopback behind a space": (" HTTP://127.0.0.1:8000/metrics", "not fetched from URLs"),
    "gopher": ("gopher://127.0.0.1/1", "not fetched from URLs of 'gopher'"),
    "not base64": ("data:image/png;base64,%%%", "not valid base64"),
    "number": (17, "must be a data: URL or base64"),
}


async def test_hostile_images_get_400_beside_a_request_that_goes_on(folder):
    async with serving(folder) as (client, router, _):
        good = asyncio.create_task(client.post(CHAT, json=chat_body(data_url(encoded(IMAGE)), max_tokens=60)))
        for name, (url, message) in HOSTILE.items():
            answer = await client.post(CHAT, json=chat_body(url))
            assert (answer.status_code, name) == (400, name), answer.text
            assert message in answer.json()["error"]["message"]
        urls = (data_url(encoded(IMAGE)), HOSTILE["cut off"][0], data_url(encoded(IMAGE)))
        answer = await client.post(CHAT, json=chat_body(*urls))
        assert (answer.status_code, "image 2 of 3: the image is broken" in answer.text) == (400, True)
        streamed = await client.post(CHAT, json=chat_body(HOSTILE["cut off"][0], stream=True))
        assert (streamed.status_code, "broken" in streamed.text) == (400, True)
        answer = await client.post(CHAT, json=chat_body(*[data_url(b"")] * 4000))
        assert (answer.status_code, "8 images, got 4000" in answer.text) == (400, True)
        answer = await client.post(CHAT, json=chat_body(*[data_url(b"")] * 10_000))
        assert answer.status_code == 400
        assert (await good).status_code == 200
        await until(lambda: router.status().engines["engine-0"].num_running == 0)


MESSAGES_OF_HOSTILE = {
    "a bomb of 100 gigapixels": "8192 pixels a side",
    "a bomb within the sides": "25000000 in all",
    "a truncated PNG": "the image is broken",
    "ten thousand tiny images": "got 10000|more than 32768",
    "a loopback URL": "not fetched from URLs",
    "an SVG": "JPEG, PNG or WebP|media_type",
    "a GIF of many frames": "JPEG, PNG or WebP",
    "wrong base64": "not valid base64",
}
FAST_S = 5.0  # on a busy machine; the truncated one starts a process


async def test_each_protocol_refuses_each_hostile_image_and_says_why(folder):
    images = hostile_images()
    assert images.keys() == MESSAGES_OF_HOSTILE.keys()
    async with serving(folder) as (client, _, engines):
        warm = await client.post(CHAT, json=chat_body(data_url(encoded(IMAGE))))  # its processes decode
        assert warm.status_code == 200
        for name, urls in images.items():
            for path, body in image_bodies("vision", urls).items():
                begun = time.monotonic()
                answer = await client.post(path, content=body, headers={"content-type": "application/json"})
                assert time.monotonic() - begun < FAST_S, (name, path)
                assert (name, path, answer.status_code) == (name, path, 400), answer.text[:500]
                error = answer.json()["error"]
                assert re.search(MESSAGES_OF_HOSTILE[name], error["message"]), (name, path, error)
        assert engines[0].stats.images.encodings_total == 1


async def test_an_image_that_comes_again_costs_no_encoding_by_any_path(folder):
    url = data_url(encoded(IMAGE))
    async with serving(folder) as (client, _, engines):
        for _ in range(2):
            for path, body in image_bodies("vision", [url]).items():
                answer = await client.post(path, content=body, headers={"content-type": "application/json"})
                assert (path, answer.status_code) == (path, 200), answer.text[:500]
        stats = engines[0].stats.images
        assert (stats.queries_total, stats.cache_hits_total, stats.encodings_total) == (6, 5, 1)
        lines = (await client.get("/metrics")).text.splitlines()
        shown = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines if "engine-0" in line}
        assert shown["rayinfer_image_encodings_total"] == 1
        assert shown["vllm:mm_cache_hits_total"] == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n": 100}, "100 choices with these images have"),
        ({"truncate_prompt_tokens": 50}, "truncate_prompt_tokens is not supported with images"),
        ({"use_beam_search": True, "n": 2}, "use_beam_search is not supported with images"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "<image>"}]}]}, None),
    ],
    ids=str,
)
async def test_settings_that_images_exclude_are_refused(changes, message, folder):
    image = picture_of(1200, 900)
    noise = (
        encoded(image)
        if "n" not in changes or "use_beam_search" in changes
        else encoded(image, "PNG", compress_level=0)
    )
    async with serving(folder) as (client, _, _):
        answer = await client.post(CHAT, json=chat_body(data_url(noise), **changes))
        if message is None:  # the marker of a text without images is a token like others
            assert answer.status_code == 200
            return
        assert answer.status_code == 400
        assert message in answer.json()["error"]["message"]


async def test_a_marker_in_a_text_beside_images_is_refused(folder):
    async with serving(folder, limits=RequestLimits(max_images=1)) as (client, _, _):
        body = chat_body(data_url(encoded(IMAGE)))
        body["messages"][0]["content"][1]["text"] = "<image>"
        answer = await client.post(CHAT, json=body)
        assert answer.status_code == 400
        assert "the marker <image> 2 times, for 1 images" in answer.json()["error"]["message"]
        answer = await client.post(CHAT, json=chat_body(*[data_url(encoded(IMAGE))] * 2))
        assert (answer.status_code, "1 images, got 2" in answer.text) == (400, True)


async def test_an_image_stream_goes_on_at_another_engine(folder):
    body = chat_body(data_url(encoded(IMAGE)), max_tokens=60, ignore_eos=True, logprobs=True)
    async with serving(folder, num_engines=2) as (client, router, engines):
        wanted = (await client.post(CHAT, json=body)).json()["choices"][0]
        asked = asyncio.create_task(client.post(CHAT, json=body | {"seed": 5}))

        def running():
            stats = router.status().engines
            return [name for name, each in stats.items() if each.num_running]

        await until(lambda: running() or asked.done())
        for name in running():
            router.engines.drain(name)
        assert (await asked).json()["choices"][0]["message"] == wanted["message"]
        assert sum(engine.stats.num_waiting for engine in engines) == 0
