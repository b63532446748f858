import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from rayinfer.engine.worker.static_runner import StaticShapes, StepShape
from support.fakes.step_plans import make_plan

ROWS, LONGEST, BLOCK_SIZE, SPARE_BLOCK = 4, 40, 8, 99


def make_shapes(**settings):
    return StaticShapes(
        **{"num_rows": ROWS, "max_step_tokens": 64, "max_model_len": LONGEST, "block_size": BLOCK_SIZE} | settings,
        scratch_block=SPARE_BLOCK,
    )


def chunks_of(chunks, samples=None):
    """Make a step of some requests: (first position, number of tokens) each, in the rows ..., 1, 0."""
    by_row = {len(chunks) - 1 - i: chunk for i, chunk in enumerate(chunks)}
    return make_plan(by_row, step=7, samples=samples, first_slot=100, num_blocks=3)


def test_decoding_steps_have_one_shape_whoever_decodes():
    shapes = make_shapes()
    for num_requests in range(1, ROWS + 1):
        filled = shapes.pad(chunks_of([(5, 1)] * num_requests))
        assert (filled.num_requests, filled.num_tokens) == (ROWS, ROWS)
        assert filled.samples.all()


def test_other_steps_double_their_tokens_from_shape_to_shape():
    assert make_shapes().shapes == (
        StepShape(4, 4), StepShape(8, 8), StepShape(8, 16), StepShape(8, 32), StepShape(8, 64), StepShape(8, 72),
    )  # fmt: skip
    short = make_shapes(num_rows=1, max_model_len=10)
    assert short.shapes == (StepShape(1, 1), StepShape(2, 2), StepShape(2, 4), StepShape(2, 8), StepShape(2, 12))


def test_the_step_itself_stands_first_and_unchanged():
    plan = structs.replace(chunks_of([(0, 20), (7, 1), (3, 9)], [True, True, False]), emptied_adapter_slots=(2, 0))
    filled = make_shapes().pad(plan)
    assert (filled.step, filled.emptied_adapter_slots) == (7, (2, 0))
    for name in ("rows", "seq_lens", "samples"):
        np.testing.assert_array_equal(getattr(filled, name)[:3], getattr(plan, name))
    for name in ("token_ids", "positions", "slot_mapping"):
        np.testing.assert_array_equal(getattr(filled, name)[:30], getattr(plan, name))
    np.testing.assert_array_equal(filled.cu_seqlens_q[:4], plan.cu_seqlens_q)
    np.testing.assert_array_equal(filled.block_tables[:3, :3], plan.block_tables)


@st.composite
def plans(draw):
    counts = draw(st.lists(st.integers(1, 16), min_size=1, max_size=ROWS))
    chunks = [(draw(st.integers(0, LONGEST - count)), count) for count in counts]
    return chunks_of(chunks, [draw(st.booleans()) for _ in counts])


@given(st.lists(plans(), min_size=1, max_size=4))
def test_what_fills_a_step_up_touches_no_request(steps):
    shapes = make_shapes()
    for plan in steps:  # one after the other: nothing of an earlier step may be left
        filled = shapes.pad(plan)
        assert StepShape(filled.num_requests, filled.num_tokens) in shapes.shapes
        assert filled.samples.sum() == ROWS
        more, more_tokens = slice(plan.num_requests, None), slice(plan.num_tokens, None)
        counts = np.diff(filled.cu_seqlens_q)
        assert filled.cu_seqlens_q[-1] == filled.num_tokens
        assert (counts >= 1).all()
        assert (filled.rows[more] == ROWS).all()
        assert (filled.block_tables[more] == SPARE_BLOCK).all()
        assert (filled.slot_mapping[more_tokens] // BLOCK_SIZE == SPARE_BLOCK).all()
        assert (filled.positions[more_tokens] == 0).all()
        np.testing.assert_array_equal(filled.seq_lens[more], counts[more])
        assert (filled.seq_lens <= filled.block_tables.shape[1] * BLOCK_SIZE).all()


@pytest.mark.parametrize("settings", [{"num_rows": 1, "max_model_len": 2}, {"max_step_tokens": 4}, {"num_rows": 9}])
def test_every_shape_has_room_for_what_fills_it_up(settings):
    shapes = make_shapes(**settings)
    for plan in shapes.warm_up_plans():
        assert (plan.seq_lens <= plan.block_tables.shape[1] * BLOCK_SIZE).all()
        assert StepShape(plan.num_requests, plan.num_tokens) in shapes.shapes


def test_arrays_are_allocated_once():
    shapes = make_shapes()
    first, second = (shapes.pad(chunks_of([(first, 1)])) for first in (3, 4))
    assert np.shares_memory(first.positions, second.positions)
    assert np.shares_memory(first.block_tables, second.block_tables)


def test_the_sampler_gets_the_scratch_row_before_any_request():
    first, *others = make_shapes().warm_up_plans()
    (nobody,) = first.new_requests
    assert nobody.row == ROWS
    assert nobody.params.is_greedy
    assert len(others) == len(make_shapes().shapes) - 1
    assert not any(plan.new_requests for plan in others)
