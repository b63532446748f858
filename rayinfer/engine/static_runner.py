"""Runs every step in one of a few shapes, all of which have run before the first request comes."""

from dataclasses import replace

import torch

from rayinfer.decoding.sampler import Sampler
from rayinfer.engine.executor import StepHandle
from rayinfer.engine.model_runner import ModelRunner
from rayinfer.engine.pipeline_link import ONLY_STAGE, Stage
from rayinfer.engine.static_shapes import StaticShapes
from rayinfer.engine.step_plan import StepPlan
from rayinfer.engine.step_results import SampledUnderWay
from rayinfer.models.decoder import Decoder


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
