"""Images of URLs over HTTP, by every protocol that takes them, with models whose answers are given."""

import contextlib
from dataclasses import replace

import httpx
import pytest

from rayinfer.images.fetching.media_fetcher import MediaFetcher
from rayinfer.images.fetching.media_settings import MediaSettings
from rayinfer.images.prompts import TiledPrompts
from rayinfer.images.shapes import TiledShape
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.app import build_app
from support.services.image_host import FakeResolver, answer, image_host
from support.tiny_models.tiny_vision import encoded, picture_of

IMAGE = encoded(picture_of(60, 40))


@contextlib.asynccontextmanager
async def serving(models, generator, *names, private=True, addresses=("127.0.0.1",)):
    """A client of a service whose model reads images, and which fetches from these hosts."""
    generator.takes_images, generator.max_model_len = True, 8192
    prompts = TiledPrompts(shape=TiledShape(tile_side=24, longest_edge=72), tokens_per_tile=1)
    (model,) = models.values()
    vision = replace(model, name="vision", image_prompts=prompts)
    settings = MediaSettings(allowed_domains=names, allows_private_networks=private)
    media = MediaFetcher(settings, FakeResolver({"images.test": [addresses]})) if names else None
    app = build_app({"vision": vision}, ServiceMetrics(), media=media)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service", timeout=60) as client:
        yield client


def chat(*urls):
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content = [*parts, {"type": "text", "text": f"Not fetched again: {urls[0]}"}]
    return {"messages": [{"role": "user", "content": content}]}


def bodies(url):
    part = {"type": "input_image", "image_url": url}
    source = {"type": "image", "source": {"type": "url", "url": url}}
    text = {"type": "text", "text": "What is this?"}
    turns = {"model": "vision", "max_tokens": 8, "messages": [{"role": "user", "content": [source, text]}]}
    return {
        "/v1/chat/completions": chat(url),
        "/v1/responses": {"input": [{"role": "user", "content": [part, {"type": "input_text", "text": "What?"}]}]},
        "/v1/messages": turns,
        "/v1/messages/count_tokens": turns,
        "/tokenize": chat(url),
    }


async def test_images_of_allowed_hosts_reach_the_model_by_every_protocol(models, generator):
    async with image_host() as host, serving(models, generator, host.name) as client:
        host.answers["/a.png"] = answer(IMAGE)
        for path, body in bodies(host.url("/a.png")).items():
            response = await client.post(path, json=body)
            assert (path, response.status_code) == (path, 200), response.text
        assert [[image.content for image in request.images] for request in generator.requests] == [[IMAGE]] * 3
        assert host.asked == ["/a.png"] * 5


async def test_an_image_in_a_tools_result_is_fetched(models, generator):
    async with image_host() as host, serving(models, generator, host.name) as client:
        host.answers["/a.png"] = answer(IMAGE)
        body = bodies(host.url("/a.png"))["/v1/messages"]
        (message,) = body["messages"]
        result = {"type": "tool_result", "tool_use_id": "t1", "content": message["content"]}
        called = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}]}
        messages = [{"role": "user", "content": "Look."}, called, {"role": "user", "content": [result]}]
        response = await client.post("/v1/messages", json=body | {"messages": messages})
        assert response.status_code == 200, response.text
        assert [[image.content for image in request.images] for request in generator.requests] == [[IMAGE]]


async def test_several_images_keep_their_order(models, generator):
    other = encoded(picture_of(30, 30))
    async with image_host() as host, serving(models, generator, host.name) as client:
        host.answers |= {"/a": answer(IMAGE), "/b": answer(other)}
        response = await client.post("/v1/chat/completions", json=chat(*map(host.url, ("/b", "/a", "/b"))))
        assert response.status_code == 200, response.text
        assert [image.content for image in generator.requests[0].images] == [other, IMAGE, other]
        assert sorted(host.asked) == ["/a", "/b"]
        prompt = models["org/tiny"].tokenizer.decode(generator.requests[0].prompt_token_ids)
        assert f"Not fetched again: {host.url('/b')}" in prompt


@pytest.mark.parametrize("path", bodies(""))
async def test_without_allowed_hosts_nothing_is_fetched(models, generator, path):
    async with image_host(a=answer(IMAGE)) as host, serving(models, generator) as client:
        response = await client.post(path, json=bodies(host.url("/a"))[path])
        assert response.status_code == 400
        assert "--allowed-media-domains" in response.text
        assert host.asked == []


async def test_other_hosts_private_networks_and_bad_images_are_refused(models, generator):
    async with image_host(a=answer(IMAGE), b=answer(b"<svg/>"), c=answer(status="500 No")) as host:
        async with serving(models, generator, host.name) as client:
            for url, said in (
                ("http://other.test/a", "allowed_media_domains"),
                ("http://169.254.169.254/latest/meta-data", "allowed_media_domains"),
                (host.url("/b"), "must be an image"),
                (host.url("/c"), "status 500"),
                ("file:///etc/passwd", "URLs of 'file'"),
            ):
                response = await client.post("/v1/chat/completions", json=chat(url))
                assert (response.status_code, said in response.json()["error"]["message"]) == (400, True), response.text
        async with serving(models, generator, host.name, private=False) as client:
            response = await client.post("/v1/chat/completions", json=chat(host.url("/a")))
            assert (response.status_code, response.json()["error"]["code"]) == (400, "media_host_not_allowed")
        assert host.asked == ["/b", "/c"]
        assert not generator.requests


async def test_a_model_of_texts_fetches_nothing(models, generator):
    async with image_host(a=answer(IMAGE)) as host, serving(models, generator, host.name) as client:
        generator.takes_images = False
        response = await client.post("/v1/chat/completions", json=chat(host.url("/a")))
        assert (response.status_code, host.asked) == (400, [])


async def test_more_images_than_a_request_may_have_are_not_fetched(models, generator):
    async with image_host(a=answer(IMAGE)) as host, serving(models, generator, host.name) as client:
        response = await client.post("/v1/chat/completions", json=chat(*[host.url("/a")] * 9))
        assert (response.status_code, host.asked) == (400, [])
