"""Rotary positions of running requests with images, where a model's tokens have three (M-RoPE)."""

from dataclasses import dataclass

import numpy as np

from rayinfer.engine.plan.step_plan import Int64Array, NewRequestData, PromptImages, StepPlan


@dataclass(frozen=True, slots=True)
class StepPositions:
    """A step's positions as the model looks them up, and what the spare ones among them stand for."""

    by_token: Int64Array  # [num_tokens]; spare ones count on from the last position of the model's tables
    spare: Int64Array  # [3, number of spare ones]: time, height and width


class RowPositions:
    """Positions by row of the batch: those that a request's images have changed, as long as it has the row."""

    def __init__(self) -> None:
        self._by_row: dict[int, PromptImages] = {}

    @property
    def are_changed(self) -> bool:
        """Whether any row has other positions than a plan."""
        return bool(self._by_row)

    def add_row(self, new_request: NewRequestData) -> None:
        """Record the positions of a request that is added to a row, or that they are the ordinary ones."""
        self._by_row.pop(new_request.row, None)
        if new_request.images is not None and new_request.images.rope_positions is not None:
            self._by_row[new_request.row] = new_request.images

    def in_step(self, plan: StepPlan, first_spare: int) -> StepPositions | None:
        """Return the positions of a step; None where they are the plan's: text alone pays nothing."""
        by_token, spare = plan.positions, [np.zeros((3, 0), np.int64)]
        num_spare = 0
        for index, row in enumerate(plan.rows.tolist()):
            images = self._by_row.get(row)
            if images is None or images.rope_positions is None:
                continue
            if by_token is plan.positions:
                by_token = plan.positions.copy()
            tokens = slice(int(plan.cu_seqlens_q[index]), int(plan.cu_seqlens_q[index + 1]))
            first, last = int(by_token[tokens.start]), int(by_token[tokens.stop - 1]) + 1
            known = images.rope_positions[:, first:last].astype(np.int64)
            by_token[tokens] += images.rope_delta
            time = by_token[tokens.start : tokens.start + known.shape[1]]
            time[:] = known[0]
            differs = np.flatnonzero((known[1] != known[0]) | (known[2] != known[0]))
            time[differs] = first_spare + num_spare + np.arange(len(differs))
            spare.append(known[:, differs])
            num_spare += len(differs)
        if by_token is plan.positions:
            return None
        return StepPositions(by_token, np.concatenate(spare, 1))
