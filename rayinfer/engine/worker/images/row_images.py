"""Embeddings of images in the prompts of running requests, and those that a step computes."""

from dataclasses import dataclass

import numpy as np

from rayinfer.engine.plan.step_plan import Float32Matrix, Int64Array, NewRequestData, PromptImages, StepPlan


@dataclass(frozen=True, slots=True)
class StepImages:
    """Places of images among a step's tokens, and what stands there in place of tokens' embeddings."""

    lines: Int64Array  # [num_lines], indices of the step's tokens
    embeddings: Float32Matrix  # [num_lines, hidden_size]


class RowImages:
    """Images by row of the batch, kept until a step of the row begins behind them."""

    def __init__(self) -> None:
        self._by_row: dict[int, PromptImages] = {}

    def add_row(self, new_request: NewRequestData) -> None:
        """Record the images of a request that is added to a row, or that it has none."""
        self._by_row.pop(new_request.row, None)
        if new_request.images is not None:
            self._by_row[new_request.row] = new_request.images

    def in_step(self, plan: StepPlan) -> StepImages | None:
        """Return what a step computes of images; None if nothing. A step may be asked for again, as after a failure."""
        if not self._by_row:
            return None
        lines: list[Int64Array] = []
        embeddings: list[Float32Matrix] = []
        for index, row in enumerate(plan.rows.tolist()):
            images = self._by_row.get(row)
            if images is None:
                continue
            start, end = int(plan.cu_seqlens_q[index]), int(plan.cu_seqlens_q[index + 1])
            first = int(plan.positions[start])
            if first > images.positions[-1]:
                del self._by_row[row]
                continue
            low, high = np.searchsorted(images.positions, (first, first + end - start))
            if low < high:
                lines.append(images.positions[low:high].astype(np.int64) - first + start)
                embeddings += images.between(int(low), int(high))
        return StepImages(np.concatenate(lines), np.concatenate(embeddings)) if lines else None
