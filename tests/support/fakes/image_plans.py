"""Steps and requests with images, for what workers keep of these by row."""

from collections.abc import Sequence

import numpy as np

from rayinfer.engine.plan.step_plan import NewRequestData, PromptImages, StepPlan
from rayinfer.sampling_params import SamplingParams


def plan_of(*chunks: tuple[int, int, int]) -> StepPlan:
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


def request_of(row: int, positions: Sequence[int], sizes: Sequence[int]) -> NewRequestData:
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
