"""Images of requests that wait to be added: refused, aborted and overdue ones cost nothing, and no stream waits."""

from concurrent.futures import Future

import pytest

from rayinfer.engine.loop.compiling_requests import CompilingRequests
from support.fakes.fake_executor import expected_tokens, numbers
from support.fakes.fake_images import IMAGE_TOKEN_ID, FakeDecoder, HeldImageModel, held_encoder, image_inputs
from support.services.async_engines import collect, request, running
from support.services.polling import until


@pytest.fixture
def model():
    model = HeldImageModel()
    yield model
    model.may_go.set()


@pytest.fixture
def decoder():
    return FakeDecoder()


def asked(name, images, prompt=(), **fields):
    prompt = [*(IMAGE_TOKEN_ID for _ in images), *(prompt or numbers(9))]
    return request(name, prompt, images=image_inputs(images), **fields)


async def test_a_stream_ends_while_others_wait_for_images(model, decoder):
    async with running(images=held_encoder(model, decoder)) as engine:
        await engine.submit([asked("image", [1]), request("text", numbers(9), 40)], "r")
        _, ends = await collect(engine, "r", 1)
        assert ends == {"text": "length"}
        assert not model.encoded


async def test_images_of_a_prompt_that_is_too_long_are_never_decoded(model, decoder):
    async with running(images=held_encoder(model, decoder), max_model_len=20) as engine:
        await engine.submit([asked("long", [1, 2], prompt=numbers(30)), asked("wrong", [3], prompt=[-5])], "r")
        _, ends = await collect(engine, "r", 2)
        assert ends == {"long": "error", "wrong": "error"}
        assert not decoder.submitted


async def test_images_of_an_aborted_request_are_never_encoded(model, decoder):
    async with running(images=held_encoder(model, decoder)) as engine:
        await engine.submit([asked("first", [1]), asked("aborted", [2, 3]), asked("last", [4])], "r")
        await until(model.has_begun.is_set)
        await engine.abort(["aborted", "nobody"])
        await until(lambda: engine.num_unfinished == 2)
        model.may_go.set()
        tokens, ends = await collect(engine, "r", 3)
        assert ends == {"first": "length", "aborted": "abort", "last": "length"}
        assert tokens["last"] == expected_tokens([IMAGE_TOKEN_ID, *numbers(9)], 4)
        assert model.encoded == [1, 4]


async def test_a_request_whose_time_is_up_ends_before_its_images_are_encoded(model, decoder):
    async with running(images=held_encoder(model, decoder)) as engine:
        await engine.submit([asked("first", [1]), asked("overdue", [2], timeout_s=0.05), asked("last", [3])], "r")
        _, ends = await collect(engine, "r", 1)
        assert ends == {"overdue": "timeout"}


def test_the_time_that_images_took_counts():
    now = 5.0
    compiling = CompilingRequests(lambda: now)
    limited, other = asked("a", [1], timeout_s=10.0), asked("b", [1])
    for each in (limited, other):
        compiling.add(each, Future())
    now = 8.0
    assert compiling.overdue() == []
    assert compiling.take(limited).timeout_s == 7.0
    assert compiling.take(limited) is None
    compiling.add(limited, Future())
    now = 18.0
    assert compiling.overdue() == ["a"]
    assert compiling.take(other).timeout_s is None


async def test_requests_of_a_router_that_has_gone_are_never_encoded(model, decoder):
    async with running(images=held_encoder(model, decoder)) as engine:
        await engine.submit([asked("held", [1])], "stays")
        await until(model.has_begun.is_set)
        await engine.submit([asked("gone", [2])], "leaves")
        messages = engine.outputs("leaves")
        await anext(messages)
        await messages.aclose()
        await until(lambda: engine.num_unfinished == 1)
        model.may_go.set()
        assert (await collect(engine, "stays", 1))[1] == {"held": "length"}
        assert model.encoded == [1]


async def test_a_model_without_images_refuses_them():
    async with running() as engine:
        await engine.submit([asked("a", [1])], "r")
        assert (await collect(engine, "r", 1))[1] == {"a": "error"}
