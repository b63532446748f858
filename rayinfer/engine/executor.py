"""Who runs a step: the door between the scheduler's arrays and the model's tensors."""

from typing import Protocol

from rayinfer.engine.step_plan import SampledTokens, StepPlan


class StepHandle(Protocol):
    """A step under way."""

    def result(self) -> SampledTokens:
        """Wait for the step's tokens; raises what the step raised."""
        ...


class Executor(Protocol):
    """Runs plans in the order in which they are submitted."""

    def submit(self, plan: StepPlan) -> StepHandle:
        """Start a step."""
        ...

    def shutdown(self) -> None:
        """Give back what it holds."""
        ...
