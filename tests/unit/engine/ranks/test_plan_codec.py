"""Round trips of the messages between ranks, and rejection of invalid ones."""

from dataclasses import fields

import msgspec
import numpy as np
import pytest

from rayinfer.engine.plan.executor_commands import BlockCopy
from rayinfer.engine.plan.step_plan import NewRequestData, SampledTokens, ScoredTokens, StepPlan
from rayinfer.engine.ranks.plan_codec import (
    BadMessage,
    computed_message,
    copy_message,
    decode,
    encode,
    plan_message,
    read_copy,
    read_plan,
    read_sampled,
)
from rayinfer.engine.ranks.rendezvous_messages import Numbers
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
ENTERED = NewRequestData(
    row=3,
    params=PARAMS,
    seed=2**64 - 1,
    choice=2,
    prompt_token_ids=np.arange(5, dtype=np.int32),
    output_token_ids=np.zeros(0, np.int32),
    end_token_ids=(2, 41),
    last_position=99,
    source_token_ids=np.array([8, 9], np.int32),
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
    new_requests=(ENTERED, NewRequestData(**{field.name: getattr(ENTERED, field.name) for field in fields(ENTERED)})),
)
SCORED = ScoredTokens(
    rows=np.array([0, 0], np.int64),
    positions=np.array([3, 4], np.int64),
    token_ids=np.array([[1, 2, 3], [4, 5, 6]], np.int32),
    logprobs=np.array([[-0.5, -np.inf, -2], [-1, -2, -3]], np.float32),
    ranks=np.array([1, 9], np.int32),
)


def assert_same(one, other):
    assert type(one) is type(other)
    for field in fields(one):
        mine, its = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, np.ndarray):
            assert (mine.dtype, mine.shape) == (its.dtype, its.shape), field.name
            assert (mine == its).all(), field.name
            assert its.flags.writeable, field.name
        elif isinstance(mine, ScoredTokens):
            assert_same(mine, its)
        elif field.name == "new_requests":
            assert len(mine) == len(its)
            for pair in zip(mine, its, strict=True):
                assert_same(*pair)
        else:
            assert mine == its, field.name


def test_a_plan_comes_out_as_it_went_in():
    assert_same(PLAN, read_plan(decode(encode(plan_message(PLAN)))))


@pytest.mark.parametrize("scores", [(None, None), (SCORED, None), (None, SCORED)])
def test_tokens_come_out_as_they_went_in(scores):
    sampled = SampledTokens(np.array([5, 2**31], np.int64), np.array([False, True]), *scores)
    message = decode(encode(computed_message(0.25, sampled)))
    assert message.busy_s == 0.25
    assert_same(sampled, read_sampled(message))


def test_a_copy_of_blocks_comes_out_as_it_went_in():
    copy = BlockCopy(direction="in", source_blocks=list(np.array([1, 2])), target_blocks=[3, 4])
    assert_same(copy, read_copy(decode(encode(copy_message(copy)))))


@pytest.mark.parametrize(
    "data", [b"", b"\x00", encode(Numbers([1, 2]))[:-1], msgspec.msgpack.encode(["numbers", "one"])]
)
def test_what_nobody_can_read_is_refused(data):
    with pytest.raises(BadMessage, match="unreadable message"):
        decode(data)


def test_parts_of_a_plan_keep_what_belongs_together():
    kept = PLAN.only(np.array([False, True]))
    assert (kept.rows.tolist(), kept.token_ids.tolist(), kept.positions.tolist()) == ([0], [7], [9])
    assert (kept.cu_seqlens_q.tolist(), kept.seq_lens.tolist(), kept.samples.tolist()) == ([0, 1], [10], [True])
    assert (kept.block_tables.tolist(), kept.new_requests) == ([[1, 2]], ())
    sampled = SampledTokens(np.array([5], np.int64), np.array([False]), SCORED, SCORED)
    nothing = sampled.only(np.array([False]), np.array([3]))
    assert (len(nothing.token_ids), len(nothing.logprobs.rows), len(nothing.prompt_logprobs.rows)) == (0, 0, 0)
    assert_same(sampled.only(np.array([True]), np.array([0])).logprobs, SCORED)
