"""Runs every step in one of a few shapes, all of which have run before the first request comes."""

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
from rayinfer.engine.worker.step_results import SampledUnderWay
from rayinfer.models.decoder import Decoder
from rayinfer.sampling_params import SamplingParams


class StepShape(NamedTuple):
    """The sizes of a step's arrays; in every shape as many requests sample as there are rows."""

    num_requests: int
    num_tokens: int


class StaticShapes:
    """Fills plans up with requests that mean nothing, in arrays that are allocated once.

    A step in which every request has one token and samples has one shape: a line for every row. All others have twice
    as many lines, so that there are always enough that sample, and a number of tokens that is doubled from one shape to
    the next. What is filled up reads and writes one block of the pool that no request has, and samples for one row of
    the sampler that no request has.
    """

    def __init__(
        self, *, num_rows: int, max_step_tokens: int, max_model_len: int, block_size: int, spare_block: int
    ) -> None:
        self._num_rows = num_rows
        self._spare_row = num_rows
        self._spare_block = spare_block
        self._block_size = block_size
        self._max_blocks = -(-max_model_len // block_size)
        longest = min(max_step_tokens, num_rows * max_model_len) + 2 * num_rows
        self._decoding = StepShape(num_rows, num_rows)
        self._prefilling = [StepShape(2 * num_rows, num_tokens) for num_tokens in _doubled(2 * num_rows, longest)]
        self._plans = {shape: self._empty(shape) for shape in self.shapes}

    @property
    def shapes(self) -> tuple[StepShape, ...]:
        """All that there are."""
        return (self._decoding, *self._prefilling)

    def warm_up_plans(self) -> list[StepPlan]:
        """Make one plan of every shape without any request; the first enters the scratch row."""
        nobody = NewRequestData(
            row=self._spare_row,
            params=SamplingParams(temperature=0.0),
            seed=0,
            choice=0,
            prompt_token_ids=np.zeros(1, np.int32),
            output_token_ids=np.zeros(0, np.int32),
            end_token_ids=(),
        )
        first, *others = (self._filled_up(shape, 0, 0, 0) for shape in self.shapes)
        return [structs.replace(first, new_requests=(nobody,)), *others]

    def fill_up(self, plan: StepPlan) -> StepPlan:
        """Return the same step in one of the shapes; it is valid until the next call."""
        num_requests, num_tokens = plan.num_requests, plan.num_tokens
        shape = self._shape_of(plan)
        filled = self._plans[shape]
        for name in ("rows", "seq_lens", "samples"):
            getattr(filled, name)[:num_requests] = getattr(plan, name)
        assert filled.uses_last_sampled is not None
        filled.uses_last_sampled[:num_requests] = False if plan.uses_last_sampled is None else plan.uses_last_sampled
        for name in ("token_ids", "positions", "slot_mapping"):
            getattr(filled, name)[:num_tokens] = getattr(plan, name)
        filled.cu_seqlens_q[: num_requests + 1] = plan.cu_seqlens_q
        filled.block_tables[:num_requests, : plan.block_tables.shape[1]] = plan.block_tables
        filled = self._filled_up(shape, num_requests, num_tokens, int(plan.samples.sum()))
        return structs.replace(filled, step=plan.step, new_requests=plan.new_requests)

    def _shape_of(self, plan: StepPlan) -> StepShape:
        if plan.num_tokens == plan.num_requests and plan.samples.all():
            return self._decoding
        # Every line that is filled up has a token.
        needed = plan.num_tokens + 2 * self._num_rows - plan.num_requests
        return next(shape for shape in self._prefilling if shape.num_tokens >= needed)

    def _filled_up(self, shape: StepShape, num_requests: int, num_tokens: int, num_samples: int) -> StepPlan:
        """Fill the arrays of a shape behind so many requests and tokens."""
        plan, num_more = self._plans[shape], shape.num_requests - num_requests
        if not num_more:
            return plan
        share, rest = divmod(shape.num_tokens - num_tokens, num_more)
        counts = np.full(num_more, share)
        counts[:rest] += 1
        plan.rows[num_requests:] = self._spare_row
        plan.seq_lens[num_requests:] = counts
        plan.block_tables[num_requests:] = self._spare_block
        assert plan.uses_last_sampled is not None
        plan.uses_last_sampled[num_requests:] = False
        plan.samples[num_requests:] = np.arange(num_more) < self._num_rows - num_samples
        plan.cu_seqlens_q[num_requests + 1 :] = num_tokens + np.cumsum(counts)
        plan.token_ids[num_tokens:] = 0
        plan.positions[num_tokens:] = 0
        plan.slot_mapping[num_tokens:] = self._spare_block * self._block_size
        return plan

    def _empty(self, shape: StepShape) -> StepPlan:
        num_requests, num_tokens = shape
        return StepPlan(
            step=0,
            rows=np.zeros(num_requests, np.int64),
            token_ids=np.zeros(num_tokens, np.int32),
            positions=np.zeros(num_tokens, np.int64),
            slot_mapping=np.zeros(num_tokens, np.int64),
            cu_seqlens_q=np.zeros(num_requests + 1, np.int32),
            seq_lens=np.zeros(num_requests, np.int32),
            block_tables=np.full((num_requests, self._max_blocks), self._spare_block, np.int32),
            samples=np.zeros(num_requests, np.bool_),
            uses_last_sampled=np.zeros(num_requests, np.bool_),
        )


def _doubled(first: int, last: int) -> list[int]:
    sizes = [first]
    while sizes[-1] < last:
        sizes.append(min(2 * sizes[-1], last))
    return sizes


class StaticRunner(ModelRunner):
    """A ModelRunner for a fixed batch; the sampler must have a row more than there are requests."""

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
        """Compute the step as a ModelRunner does; of its tokens only those of its own requests count."""
        step = super().submit(self._shapes.fill_up(plan))
        return replace(step, count=int(plan.samples.sum())) if isinstance(step, SampledUnderWay) else step
