"""Round trips of the messages between engines and routers."""

import math
from dataclasses import asdict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayinfer.outputs import Credits, EngineStats, Logprob, StepMessage, TokenDelta, TraceEvent
from rayinfer.predictions import PredictionInput, PredictionOutput
from rayinfer.protocols import GenerationRequest
from rayinfer.sampling_params import SamplingParams
from rayinfer.transport.engine_messages import FROM_ENGINE, FROM_ROUTER, Abort, EndOfOutputs, StepOutputs, Submit
from rayinfer.wire import LENGTH_BYTES, BadMessage, decode, encode

TOKEN_IDS = st.lists(st.integers(0, 2**31 - 1), max_size=4)
LOGPROBS = st.dictionaries(
    st.integers(0, 2**31 - 1),
    st.builds(Logprob, st.floats(max_value=0.0, allow_nan=False), st.none() | st.integers(1, 2**31 - 1)),
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
    st.none() | st.builds(PredictionOutput, shape=st.tuples(st.integers(0, 9)), data=st.binary(), error=st.text()),
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
    logprobs=st.integers(0, 20),
    logprob_token_ids=TOKEN_IDS,
    prompt_logprobs=st.none() | st.integers(-1, 20),
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
    attempt=st.integers(0, 9),
    trace=st.booleans(),
    prediction=st.none()
    | st.builds(
        PredictionInput,
        task=st.sampled_from(["embed", "classify", "infer"]),
        num_first_tokens=st.integers(0, 9),
        image=st.binary(max_size=4),
        tensors=st.binary(max_size=4),
        cost=st.integers(0, 99),
    ),
)


def cross(message, decoder):
    return decode(decoder, encode(message)[LENGTH_BYTES:])


@given(REQUESTS)
def test_a_request_arrives_as_it_was_sent(request):
    crossed = cross(Submit([request]), FROM_ROUTER).requests[0]
    assert crossed == request
    # Lists would not be equal to tuples, but 1 is to 1.0.
    params, crossed_params = (asdict(each.sampling_params) for each in (request, crossed))
    assert repr(crossed_params) == repr(params | {"temperature": float(params["temperature"])})


@given(st.lists(DELTAS, max_size=3), st.lists(st.binary(max_size=16), max_size=3), st.floats(0, 100))
def test_a_step_arrives_as_it_was_sent(deltas, block_hashes, stalled_s):
    stats = EngineStats(num_running=3, requests_finished_total={"stop": 2}, credits=Credits(1, 2, 3))
    message = StepMessage(
        deltas=deltas,
        stats=stats,
        blocks_stored=block_hashes,
        stalled_s=stalled_s,
        stall_limit_s=math.inf,
    )
    crossed = cross(StepOutputs(message), FROM_ENGINE).message
    assert crossed == message
    assert all(type(delta) is TokenDelta for delta in crossed.deltas)
    assert type(crossed.stats.credits) is Credits


def test_a_certain_token_and_an_impossible_one_keep_their_log_probabilities():
    delta = TokenDelta("r/0", 0, [1], [{1: Logprob(0.0, 1), 2: Logprob(-math.inf, 9)}])
    message = StepMessage(deltas=[delta], stats=EngineStats())
    (crossed,) = cross(StepOutputs(message), FROM_ENGINE).message.deltas
    assert crossed.logprobs == [{1: Logprob(0.0, 1), 2: Logprob(-math.inf, 9)}]
    assert type(crossed.logprobs[0][1]) is Logprob


@pytest.mark.parametrize("message", [Abort(["a/0", "a/1"]), EndOfOutputs("why")])
def test_short_messages_arrive(message):
    assert cross(message, FROM_ROUTER if isinstance(message, Abort) else FROM_ENGINE) == message


@pytest.mark.parametrize(
    "value",
    [
        ["unknown", 1],
        ["abort", [1]],
        ["submit", [{"request_id": "a", "prompt_token_ids": ["x"], "sampling_params": {}}]],
        ["submit", [{"request_id": "a", "prompt_token_ids": [], "sampling_params": {"n": 0}}]],
    ],
)
def test_invalid_messages_are_refused(value):
    with pytest.raises(BadMessage):
        decode(FROM_ROUTER, msgspec.msgpack.encode(value))
