import asyncio

import pytest

from rayinfer.benchmark.control_plane.overhead.paced_engine import PacedEngine, paced_description, printable_token_ids
from rayinfer.protocols import GenerationRequest
from rayinfer.sampling_params import SamplingParams

TIMEOUT_S = 10.0
NEVER_S = 3600.0


def request(name, max_tokens=3, known=()):
    params = SamplingParams(max_tokens=max_tokens)
    return GenerationRequest(
        request_id=name, prompt_token_ids=[1], output_token_ids=list(known), sampling_params=params
    )


def engine(tokenizer, interval_s):
    return PacedEngine(paced_description("m", tokenizer), [5, 6, 7], interval_s=interval_s, max_running=10)


async def next_message(messages):
    async with asyncio.timeout(TIMEOUT_S):
        return await anext(messages)


async def test_a_first_token_does_not_wait_for_the_clock(tokenizer):
    paced = engine(tokenizer, NEVER_S)
    messages = paced.outputs("router")
    await paced.submit([request("a")], "router")
    message = await next_message(messages)
    assert [(delta.request_id, delta.start_pos, delta.token_ids) for delta in message.deltas] == [("a", 0, [5])]
    assert (message.stats.num_running, message.stats.credits.num_requests) == (1, 10)


async def test_every_stream_gets_one_token_a_tick_in_one_message(tokenizer):
    paced = engine(tokenizer, 0.02)
    messages = paced.outputs("router")
    await paced.submit([request("a"), request("b", max_tokens=2)], "router")
    received = [await next_message(messages) for _ in range(3)]
    assert [[delta.request_id for delta in message.deltas] for message in received] == [
        ["a", "b"],
        ["a", "b"],
        ["a"],
    ]
    assert [message.deltas[0].token_ids for message in received] == [[5], [6], [7]]
    assert [message.deltas[-1].finish_reason for message in received] == [None, "length", "length"]
    assert (paced.num_tokens, paced.stats.num_running) == (5, 0)


async def test_a_migrated_stream_continues_at_its_position(tokenizer):
    paced = engine(tokenizer, NEVER_S)
    messages = paced.outputs("router")
    await paced.submit([request("a", max_tokens=3, known=[5, 6])], "router")
    (delta,) = (await next_message(messages)).deltas
    assert (delta.start_pos, delta.token_ids, delta.finish_reason) == (2, [7], "length")


@pytest.mark.parametrize("way", ["abort", "close"])
async def test_aborted_streams_and_those_of_a_closed_router_end(tokenizer, way):
    paced = engine(tokenizer, NEVER_S)
    messages = paced.outputs("router")
    await paced.submit([request("a")], "router")
    await next_message(messages)
    await (paced.abort(["a", "unknown"]) if way == "abort" else messages.aclose())
    assert paced.stats.num_running == 0


def test_every_token_decodes_to_text_of_its_own(tokenizer):
    token_ids = printable_token_ids(tokenizer)
    assert len(token_ids) > 100
    assert all(tokenizer.decode([token_id]).isascii() for token_id in token_ids)
