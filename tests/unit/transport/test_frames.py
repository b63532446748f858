"""Whatever engines and routers say to each other arrives as it was said."""

import asyncio
import math
from dataclasses import asdict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayinfer.outputs import Credits, EngineStats, Logprob, StepMessage, TokenDelta, TraceEvent
from rayinfer.protocols import GenerationRequest
from rayinfer.sampling_params import SamplingParams
from rayinfer.transport.frames import (
    LENGTH_BYTES,
    AbortFrame,
    BadFrame,
    EndFrame,
    FromEngine,
    FromRouter,
    StepFrame,
    SubmitFrame,
    encode_frame,
    read_frame,
)

TOKEN_IDS = st.lists(st.integers(0, 2**31 - 1), max_size=4)
LOGPROBS = st.dictionaries(
    st.integers(0, 2**31 - 1),
    st.builds(Logprob, st.floats(max_value=0.0, allow_nan=False), st.integers(1, 2**31 - 1)),
    max_size=3,
)
EVENTS = st.builds(
    TraceEvent,
    st.sampled_from(["queued", "finished"]),
    st.floats(0, 2**40),
    st.dictionaries(
        st.text(max_size=5), st.one_of(st.integers(0, 99), st.floats(0, 1), st.text(max_size=5)), max_size=3
    ),
)
DELTAS = st.builds(
    TokenDelta,
    st.text(max_size=8),
    st.integers(0, 2**20),
    TOKEN_IDS,
    st.none() | st.lists(LOGPROBS, max_size=2),
    st.sampled_from([None, "stop", "length", "abort", "error", "timeout"]),
    st.none() | st.integers(0, 99),
    st.integers(0, 99),
    st.none() | st.lists(st.none() | LOGPROBS, max_size=2),
    st.none() | st.lists(EVENTS, max_size=2),
)
PARAMS = st.builds(
    SamplingParams,
    n=st.integers(1, 128),
    temperature=st.sampled_from([0, 0.7, 2.0]),
    top_k=st.sampled_from([-1, 0, 2**31 - 1]),
    logit_bias=st.none() | st.dictionaries(st.integers(0, 99), st.floats(-100, 100), max_size=3),
    allowed_token_ids=st.none() | st.lists(st.integers(100, 199), min_size=1, max_size=3),
    bad_words=st.lists(st.text(min_size=1, max_size=3), max_size=2),
    bad_token_sequences=st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=3), max_size=2),
    seed=st.none() | st.integers(-(2**63), 2**64 - 1),
    max_tokens=st.none() | st.integers(0, 2**31 - 1),
    stop=st.none() | st.text(min_size=1, max_size=3) | st.lists(st.text(min_size=1, max_size=3), max_size=2),
    stop_token_ids=TOKEN_IDS,
    logprobs=st.none() | st.integers(0, 20),
)
REQUESTS = st.builds(
    GenerationRequest,
    request_id=st.text(max_size=8),
    prompt_token_ids=TOKEN_IDS,
    output_token_ids=TOKEN_IDS,
    sampling_params=PARAMS,
    priority=st.integers(-10, 10),
    timeout_s=st.none() | st.floats(0, 100),
    tenant=st.text(max_size=4),
    adapter=st.none() | st.text(max_size=4),
    epoch=st.integers(0, 9),
    trace=st.booleans(),
)


def cross(frame, decoder):
    return decoder.decode(encode_frame(frame)[LENGTH_BYTES:])


@given(REQUESTS)
def test_a_request_arrives_as_it_was_sent(request):
    crossed = cross(SubmitFrame([request]), FromRouter).requests[0]
    assert crossed == request
    # Lists would not be equal to tuples, but 1 is to 1.0.
    params, crossed_params = (asdict(each.sampling_params) for each in (request, crossed))
    assert repr(crossed_params) == repr(params | {"temperature": float(params["temperature"])})


@given(st.lists(DELTAS, max_size=3), st.lists(st.binary(max_size=16), max_size=3), st.floats(0, 100))
def test_a_step_arrives_as_it_was_said(deltas, digests, silent_s):
    stats = EngineStats(num_running=3, requests_finished_total={"stop": 2}, credits=Credits(1, 2, 3))
    message = StepMessage(
        epoch=2**62,
        step=9,
        deltas=deltas,
        stats=stats,
        blocks_stored=digests,
        silent_s=silent_s,
        silent_limit_s=math.inf,
    )
    crossed = cross(StepFrame(message), FromEngine).message
    assert crossed == message
    assert all(type(delta) is TokenDelta for delta in crossed.deltas)
    assert type(crossed.stats.credits) is Credits


def test_a_certain_token_and_an_impossible_one_keep_their_log_probabilities():
    delta = TokenDelta("r/0", 0, [1], [{1: Logprob(0.0, 1), 2: Logprob(-math.inf, 9)}])
    message = StepMessage(epoch=1, step=1, deltas=[delta], stats=EngineStats())
    (crossed,) = cross(StepFrame(message), FromEngine).message.deltas
    assert crossed.logprobs == [{1: Logprob(0.0, 1), 2: Logprob(-math.inf, 9)}]
    assert type(crossed.logprobs[0][1]) is Logprob


@pytest.mark.parametrize("frame", [AbortFrame(["a/0", "a/1"]), EndFrame("why")])
def test_short_words_arrive(frame):
    assert cross(frame, FromRouter if isinstance(frame, AbortFrame) else FromEngine) == frame


def reader_of(*pieces):
    reader = asyncio.StreamReader()
    for piece in pieces:
        reader.feed_data(piece)
    reader.feed_eof()
    return reader


async def test_frames_are_read_one_by_one_however_they_come():
    said = encode_frame(AbortFrame(["a"])) + encode_frame(AbortFrame(["b"]))
    reader = reader_of(said[:3], said[3:7], said[7:])
    assert [await read_frame(reader, FromRouter) for _ in range(3)] == [AbortFrame(["a"]), AbortFrame(["b"]), None]


async def test_a_line_that_breaks_within_a_frame_has_ended():
    assert await read_frame(reader_of(encode_frame(AbortFrame(["a"]))[:-1]), FromRouter) is None


@pytest.mark.parametrize(
    "value",
    [
        b"\xc1",  # is nothing in MessagePack
        msgspec.msgpack.encode(["unknown", 1]),
        msgspec.msgpack.encode(["abort", [1]]),
        msgspec.msgpack.encode(["submit", [{"request_id": "a", "prompt_token_ids": ["x"], "sampling_params": {}}]]),
        msgspec.msgpack.encode(["submit", [{"request_id": "a", "prompt_token_ids": [], "sampling_params": {"n": 0}}]]),
    ],
)
async def test_what_is_no_frame_is_refused(value):
    with pytest.raises(BadFrame):
        await read_frame(reader_of(len(value).to_bytes(LENGTH_BYTES, "big") + value), FromRouter)


async def test_a_frame_that_is_too_long_is_not_read():
    with pytest.raises(BadFrame, match="at most 10"):
        await read_frame(reader_of(encode_frame(AbortFrame(["a" * 20]))), FromRouter, 10)
