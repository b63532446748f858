import asyncio

import pytest

from rayinfer.benchmark.control_plane.overhead.paced_engine import PacedEngine, paced_description, telling_token_ids
from rayinfer.protocols import GenerationRequest
from rayinfer.sampling_params import SamplingParams

PATIENCE_S = 10.0
NEVER_S = 3600.0


def request(name, max_tokens=3, known=()):
    params = SamplingParams(max_tokens=max_tokens)
    return GenerationRequest(
        request_id=name, prompt_token_ids=[1], output_token_ids=list(known), sampling_params=params
    )


def engine(tokenizer, interval_s):
    return PacedEngine(paced_description("m", tokenizer), [5, 6, 7], interval_s=interval_s, max_running=10)


async def next_message(messages):
    async with asyncio.timeout(PATIENCE_S):
        return await anext(messages)


async def test_a_request_gets_its_first_token_without_waiting_for_the_clock(tokenizer):
    paced = engine(tokenizer, NEVER_S)
    messages = paced.outputs("router")
    await paced.submit([request("a")], "router")
    message = await next_message(messages)
    assert [(delta.request_id, delta.start_pos, delta.token_ids) for delta in message.deltas] == [("a", 0, [5])]
    assert (message.stats.num_running, message.stats.credits.num_requests) == (1, 10)


async def test_every_stream_gets_one_token_a_tick_in_one_message_until_it_has_all(tokenizer):
    paced = engine(tokenizer, 0.02)
    messages = paced.outputs("router")
    await paced.submit([request("a"), request("b", max_tokens=2)], "router")
    said = [await next_message(messages) for _ in range(3)]
    assert [[delta.request_id for delta in message.deltas] for message in said] == [["a", "b"], ["a", "b"], ["a"]]
    assert [message.deltas[0].token_ids for message in said] == [[5], [6], [7]]
    assert [message.deltas[-1].finish_reason for message in said] == [None, "length", "length"]
    assert (paced.num_tokens, paced.stats.num_running) == (5, 0)


async def test_a_stream_that_comes_from_elsewhere_goes_on_where_it_was(tokenizer):
    paced = engine(tokenizer, NEVER_S)
    messages = paced.outputs("router")
    await paced.submit([request("a", max_tokens=3, known=[5, 6])], "router")
    (delta,) = (await next_message(messages)).deltas
    assert (delta.start_pos, delta.token_ids, delta.finish_reason) == (2, [7], "length")


@pytest.mark.parametrize("way", ["abort", "close"])
async def test_aborted_streams_and_those_of_a_router_that_left_get_nothing_more(tokenizer, way):
    paced = engine(tokenizer, NEVER_S)
    messages = paced.outputs("router")
    await paced.submit([request("a")], "router")
    await next_message(messages)
    await (paced.abort(["a", "unknown"]) if way == "abort" else messages.aclose())
    assert paced.stats.num_running == 0


async def test_routers_hear_only_of_their_own_requests(tokenizer):
    paced = engine(tokenizer, NEVER_S)
    lines = {name: paced.outputs(name) for name in "ab"}
    for name in lines:
        await paced.submit([request(f"of-{name}")], name)
    for name, messages in lines.items():
        assert [delta.request_id for delta in (await next_message(messages)).deltas] == [f"of-{name}"]


async def test_an_engine_without_news_gives_signs_of_life(tokenizer):
    message = await next_message(engine(tokenizer, NEVER_S).outputs("router"))
    assert message.deltas == []


def test_every_token_that_it_says_makes_text_of_its_own(tokenizer):
    token_ids = telling_token_ids(tokenizer)
    assert len(token_ids) > 100
    assert all(tokenizer.decode([token_id]).isascii() for token_id in token_ids)
