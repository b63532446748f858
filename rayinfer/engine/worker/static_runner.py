"""Model runner of a fixed batch: every step has one of a few shapes, all of which ran before the first request."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from msgspec import structs

from rayinfer.decoding.sampler import Sampler
from rayinfer.engine.plan.executor import StepHandle
from rayinfer.engine.plan.step_plan import NewRequestData, StepPlan
from rayinfer.engine.ranks.pipeline_link import ONLY_STAGE, Stage
from rayinfer.engine.worker.model_runner import ModelRunner
from rayinfer.engine.worker.padding import Padding, empty_plan, pad_plan
from rayinfer.engine.worker.step_results import PendingSample
from rayinfer.models.decoder import Decoder
from rayinfer.sampling_params import SamplingParams


class StepShape(NamedTuple):
    """The sizes of a step's arrays; in every shape as many requests sample as there are rows."""

    num_requests: int
    num_tokens: int


class StaticShapes:
    """Pads plans to one of a few shapes, in arrays that are allocated once.

    A step in which every request has one token and samples has one shape: a request for every row. All others have
    twice as many requests, so that there are always enough that sample, and a number of tokens that doubles from one
    shape to the next. Padding reads and writes a scratch block, and samples for a scratch row of the sampler.
    """

    def __init__(
        self, *, num_rows: int, max_step_tokens: int, max_model_len: int, block_size: int, scratch_block: int
    ) -> None:
        self._num_rows = num_rows
        self._scratch_row = num_rows
        self._padding = Padding.in_block(scratch_block, block_size)
        longest = min(max_step_tokens, num_rows * max_model_len) + 2 * num_rows
        self._decoding = StepShape(num_rows, num_rows)
        self._prefilling = [StepShape(2 * num_rows, num_tokens) for num_tokens in _doubled(2 * num_rows, longest)]
        max_blocks = -(-max_model_len // block_size)
        self._plans = {shape: empty_plan(*shape, max_blocks) for shape in self.shapes}
        for plan in self._plans.values():
            plan.block_tables[:] = scratch_block

    @property
    def shapes(self) -> tuple[StepShape, ...]:
        """All shapes."""
        return (self._decoding, *self._prefilling)

    def warm_up_plans(self) -> list[StepPlan]:
        """Make one plan of padding alone for every shape; the first brings the sampler its scratch row."""
        dummy = NewRequestData(
            row=self._scratch_row,
            params=SamplingParams(temperature=0.0),
            seed=0,
            choice=0,
            prompt_token_ids=np.zeros(1, np.int32),
            output_token_ids=np.zeros(0, np.int32),
            end_token_ids=(),
        )
        first, *others = (self._pad(empty_plan(0, 0, 0), shape) for shape in self.shapes)
        return [structs.replace(first, new_requests=(dummy,)), *others]

    def pad(self, plan: StepPlan) -> StepPlan:
        """Return the same step in one of the shapes; it is valid until the next call."""
        padded = self._pad(plan, self._shape_of(plan))
        emptied = plan.emptied_adapter_slots
        return structs.replace(padded, step=plan.step, new_requests=plan.new_requests, emptied_adapter_slots=emptied)

    def _shape_of(self, plan: StepPlan) -> StepShape:
        if plan.num_tokens == plan.num_requests and plan.samples.all():
            return self._decoding
        # Every padding request has a token.
        needed = plan.num_tokens + 2 * self._num_rows - plan.num_requests
        return next(shape for shape in self._prefilling if shape.num_tokens >= needed)

    def _pad(self, plan: StepPlan, shape: StepShape) -> StepPlan:
        padded = self._plans[shape]
        pad_plan(plan, padded, self._padding, self._scratch_row)
        num_missing = self._num_rows - int(plan.samples.sum())
        padded.samples[plan.num_requests : plan.num_requests + num_missing] = True
        return padded


def _doubled(first: int, last: int) -> list[int]:
    sizes = [first]
    while sizes[-1] < last:
        sizes.append(min(2 * sizes[-1], last))
    return sizes


class StaticRunner(ModelRunner):
    """A ModelRunner for a fixed batch; the sampler must have one row more than there are requests."""

    def __init__(
        self,
        decoder: Decoder,
        sampler: Sampler,
        device: torch.device,
        shapes: StaticShapes,
        stage: Stage = ONLY_STAGE,
    ) -> None:
        super().__init__(decoder, sampler, device, stage)
        self._shapes = shapes

    def warm_up(self) -> None:
        """Run a step of every shape; the model's caches must be bound."""
        for plan in self._shapes.warm_up_plans():
            super().submit(plan)

    def submit(self, plan: StepPlan) -> StepHandle:
        """Compute the padded step; its result has the tokens of the plan's own requests."""
        step = super().submit(self._shapes.pad(plan))
        return replace(step, count=int(plan.samples.sum())) if isinstance(step, PendingSample) else step
