"""Round trips of the messages between ranks."""

import msgspec
import numpy as np
import pytest

from rayinfer import wire
from rayinfer.engine.plan.executor_commands import BlockCopy, SleepLevel
from rayinfer.engine.plan.step_plan import LogprobsArrays, NewRequestData, PromptImages, SampledTokens, StepPlan
from rayinfer.engine.ranks.rank_messages import DECODER, Failed, Heartbeat, ReduceMin, Release, StageResult, StoreReply
from rayinfer.sampling_params import SamplingParams

PARAMS = SamplingParams(
    temperature=0.7,
    top_k=5,
    seed=2**64 - 1,
    logit_bias={3: 1.5, 9: -100.0},
    allowed_token_ids=[4, 5, 6],
    bad_token_sequences=[[1, 2], [3]],
    stop=["a", "b"],
    stop_token_ids=[7],
    max_tokens=None,
    logprobs=3,
    prompt_logprobs=0,
)
NEW_REQUEST = NewRequestData(
    row=3,
    params=PARAMS,
    seed=2**64 - 1,
    choice=2,
    prompt_token_ids=np.arange(5, dtype=np.int32),
    output_token_ids=np.zeros(0, np.int32),
    end_token_ids=(2, 41),
    last_position=99,
    source_token_ids=np.array([8, 9], np.int32),
    images=PromptImages(
        positions=np.array([1, 2, 4], np.int32),
        embeddings=(np.array([[1.5, -2.0], [0.0, 4.0]], np.float32), np.array([[7.0, 8.0]], np.float32)),
    ),
)
PLAN = StepPlan(
    step=12,
    rows=np.array([3, 0], np.int64),
    token_ids=np.array([5, 6, 7], np.int32),
    positions=np.array([0, 1, 9], np.int64),
    slot_mapping=np.array([2**40, 1, 25], np.int64),
    cu_seqlens_q=np.array([0, 2, 3], np.int32),
    seq_lens=np.array([2, 10], np.int32),
    block_tables=np.array([[4, 0, 0], [1, 2, 3]], np.int32)[:, :2],  # a view, whose rows are not next to each other
    samples=np.array([False, True]),
    new_requests=(NEW_REQUEST, msgspec.structs.replace(NEW_REQUEST, source_token_ids=None, images=None)),
    uses_last_sampled=np.array([True, False]),
)
SCORED = LogprobsArrays(
    rows=np.array([0, 0], np.int64),
    positions=np.array([3, 4], np.int64),
    token_ids=np.array([[1, 2, 3], [4, 5, 6]], np.int32),
    logprobs=np.array([[-0.5, -np.inf, -2], [-1, -2, -3]], np.float32),
    ranks=np.array([1, 9], np.int32),
)


def crossed(message):
    return wire.decode(DECODER, wire.encode(message)[wire.LENGTH_BYTES :])


def assert_same(one, other):
    assert type(one) is type(other)
    if isinstance(one, msgspec.Struct):
        for name in one.__struct_fields__:
            assert_same(getattr(one, name), getattr(other, name))
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape, one.tolist()) == (other.dtype, other.shape, other.tolist())
        assert other.flags.writeable
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    else:
        assert one == other


@pytest.mark.parametrize(
    "message",
    [
        PLAN,
        StageResult(0.25),
        *(
            StageResult(0.25, SampledTokens(np.array([5, 2**31], np.int64), np.array([False, True]), *scores))
            for scores in [(None, None), (SCORED, None), (None, SCORED)]
        ),
        BlockCopy(direction="in", source_blocks=[1, 2], target_blocks=[3, 4]),
        Release(SleepLevel.OFFLOAD, [4, 7]),
        Failed("why", True, 1.5),
        Heartbeat(),
        ReduceMin([1, 2]),
        StoreReply(None),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_arrive_as_they_were_sent(message):
    assert_same(message, crossed(message))


def test_block_numbers_may_be_numpys():
    sent = BlockCopy(direction="out", source_blocks=list(np.array([1, 2])), target_blocks=[3, 4])
    assert crossed(sent) == BlockCopy(direction="out", source_blocks=[1, 2], target_blocks=[3, 4])


def test_parts_of_a_plan_keep_what_belongs_together():
    kept = PLAN.only(np.array([False, True]))
    assert (kept.rows.tolist(), kept.token_ids.tolist(), kept.positions.tolist()) == ([0], [7], [9])
    assert (kept.cu_seqlens_q.tolist(), kept.seq_lens.tolist(), kept.samples.tolist()) == ([0, 1], [10], [True])
    assert (kept.block_tables.tolist(), kept.new_requests) == ([[1, 2]], ())
    sampled = SampledTokens(np.array([5], np.int64), np.array([False]), SCORED, SCORED)
    nothing = sampled.only(np.array([False]), np.array([3]))
    assert (len(nothing.token_ids), len(nothing.logprobs.rows), len(nothing.prompt_logprobs.rows)) == (0, 0, 0)
    assert_same(SCORED, sampled.only(np.array([True]), np.array([0])).logprobs)
