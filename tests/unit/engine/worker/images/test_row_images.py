"""Images of a step: chunks that begin and end within them, several requests, and rows that are reused."""

import numpy as np

from rayinfer.engine.plan.step_plan import NewRequestData, PromptImages, StepPlan
from rayinfer.engine.worker.images.row_images import RowImages
from rayinfer.sampling_params import SamplingParams


def plan_of(*chunks):
    """A step of chunks (row, first position, end)."""
    counts = [end - first for _, first, end in chunks]
    num_tokens = sum(counts)
    return StepPlan(
        step=0,
        rows=np.array([row for row, _, _ in chunks], np.int64),
        token_ids=np.zeros(num_tokens, np.int32),
        positions=np.concatenate([np.arange(first, end) for _, first, end in chunks]),
        slot_mapping=np.zeros(num_tokens, np.int64),
        cu_seqlens_q=np.array([0, *np.cumsum(counts)], np.int32),
        seq_lens=np.array([end for _, _, end in chunks], np.int32),
        block_tables=np.zeros((len(chunks), 1), np.int32),
        samples=np.zeros(len(chunks), np.bool_),
    )


def request_of(row, positions, sizes):
    """A request with images of so many tokens at these positions; an embedding is its number."""
    images = None
    if sizes:
        values = np.arange(sum(sizes), dtype=np.float32)[:, None] + 100 * row
        starts = np.cumsum([0, *sizes])
        parts = tuple(values[start : start + size] for start, size in zip(starts, sizes, strict=False))
        images = PromptImages(positions=np.array(positions, np.int32), embeddings=parts)
    return NewRequestData(
        row=row,
        params=SamplingParams(),
        seed=0,
        choice=0,
        prompt_token_ids=np.zeros(20, np.int32),
        output_token_ids=np.zeros(0, np.int32),
        end_token_ids=(),
        images=images,
    )


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
