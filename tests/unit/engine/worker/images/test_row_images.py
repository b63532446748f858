"""Images of a step: chunks that begin and end within them, several requests, and rows that are reused."""

from rayinfer.engine.worker.images.row_images import RowImages
from support.fakes.image_plans import plan_of, request_of


def found(rows, *chunks):
    images = rows.in_step(plan_of(*chunks))
    return None if images is None else dict(zip(images.lines.tolist(), images.embeddings[:, 0].tolist(), strict=True))


def test_chunks_may_begin_and_end_within_images():
    rows = RowImages()
    rows.add_row(request_of(1, [2, 3, 4, 7, 8, 9], [3, 3]))
    assert found(rows, (1, 0, 2)) is None
    assert found(rows, (1, 2, 4)) == {0: 100.0, 1: 101.0}
    assert found(rows, (1, 4, 8)) == {0: 102.0, 3: 103.0}
    assert found(rows, (1, 4, 8)) == {0: 102.0, 3: 103.0}  # again, after a failure
    assert found(rows, (1, 8, 20)) == {0: 104.0, 1: 105.0}


def test_requests_of_a_step_have_their_own_images():
    rows = RowImages()
    rows.add_row(request_of(1, [2, 3], [2]))
    rows.add_row(request_of(4, [0, 1, 2], [1, 2]))
    rows.add_row(request_of(5, [], []))
    assert found(rows, (5, 0, 6), (4, 1, 5), (1, 0, 4)) == {6: 401.0, 7: 402.0, 12: 100.0, 13: 101.0}


def test_a_row_is_reused_without_the_images_before():
    rows = RowImages()
    rows.add_row(request_of(1, [2, 3], [2]))
    rows.add_row(request_of(1, [], []))
    assert found(rows, (1, 0, 6)) is None


def test_images_are_dropped_once_a_step_begins_behind_them():
    rows = RowImages()
    rows.add_row(request_of(1, [2, 3], [2]))
    assert found(rows, (1, 0, 6)) == {2: 100.0, 3: 101.0}
    assert found(rows, (1, 6, 7)) is None
    assert found(rows, (1, 0, 6)) is None
