"""Rotary positions of a step: chunks that begin and end within images, several requests, and rows that are reused."""

import numpy as np
from msgspec import structs

from rayinfer.engine.plan.step_plan import PromptImages
from rayinfer.engine.worker.images.row_positions import RowPositions
from support.fakes.image_plans import plan_of, request_of

SPARE = 100  # the first spare position
# Two tokens of text, an image of two rows and three columns, and one token of text.
POSITIONS = np.array([[0, 1, 2, 2, 2, 2, 2, 2], [0, 1, 2, 2, 2, 3, 3, 3], [0, 1, 2, 3, 4, 2, 3, 4]], np.int32)
IMAGES = PromptImages(
    positions=np.arange(2, 8, dtype=np.int32),
    embeddings=(np.zeros((6, 1), np.float32),),
    rope_positions=POSITIONS,
    rope_delta=-3,
)


def with_images(row):
    return structs.replace(request_of(row, [], []), images=IMAGES)


def test_an_image_has_spare_positions_where_its_three_differ():
    rows = RowPositions()
    rows.add_row(with_images(0))
    step = rows.in_step(plan_of((0, 0, 10)), SPARE)
    assert step.by_token.tolist() == [0, 1, 2, 100, 101, 102, 103, 104, 5, 6]
    assert step.spare.T.tolist() == [[2, 2, 3], [2, 2, 4], [2, 3, 2], [2, 3, 3], [2, 3, 4]]


def test_chunks_get_what_the_whole_prompt_has():
    rows = RowPositions()
    rows.add_row(with_images(0))
    whole = rows.in_step(plan_of((0, 0, 10)), SPARE)
    for cut in range(1, 10):
        parts = [rows.in_step(plan_of((0, *ends)), SPARE) for ends in ((0, cut), (cut, 10))]
        assert np.array_equal(np.concatenate([part.spare for part in parts], 1), whole.spare)
        by_token = np.concatenate([part.by_token for part in parts])
        assert np.array_equal(by_token < SPARE, whole.by_token < SPARE)
        assert by_token[by_token < SPARE].tolist() == [0, 1, 2, 5, 6]


def test_requests_beside_it_keep_theirs():
    rows = RowPositions()
    rows.add_row(request_of(1, [], []))
    assert rows.in_step(plan_of((1, 0, 4)), SPARE) is None
    rows.add_row(with_images(0))
    rows.add_row(with_images(2))
    plan = plan_of((1, 4, 5), (0, 9, 10), (2, 6, 8), (1, 0, 0))
    step = rows.in_step(plan, SPARE)
    assert step.by_token.tolist() == [4, 6, 100, 101]
    assert step.spare.T.tolist() == [[2, 3, 3], [2, 3, 4]]
    assert plan.positions.tolist() == [4, 9, 6, 7]
    assert rows.in_step(plan_of((1, 5, 6)), SPARE) is None


def test_a_row_that_is_reused_has_ordinary_positions():
    rows = RowPositions()
    rows.add_row(with_images(0))
    rows.add_row(request_of(0, [], []))
    assert not rows.are_changed
    assert rows.in_step(plan_of((0, 0, 9)), SPARE) is None
