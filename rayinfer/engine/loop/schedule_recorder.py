"""Interface of what follows an engine's schedule: its inputs, its plans and its tokens, in their order."""

from typing import Protocol

from rayinfer.engine.plan.step_plan import SampledTokens, StepPlan
from rayinfer.protocols import ControlAction, GenerationRequest


class ScheduleRecorder(Protocol):
    """Receiver of everything that an engine's steps depend on, and of what they result in; called by its thread."""

    def clock(self) -> float:
        """Return the time, which the engine reads here only."""
        ...

    def added(self, request: GenerationRequest) -> None:
        """Take a request, before it is checked."""
        ...

    def aborted(self, request_id: str) -> None:
        """Take the id of a request that is aborted."""
        ...

    def controlled(self, action: ControlAction) -> None:
        """Take an action between two steps."""
        ...

    def stepped(self) -> None:
        """Take the begin of a step."""
        ...

    def planned(self, plan: StepPlan, request_ids: list[str]) -> None:
        """Take a plan before it is computed, with the request of each of its rows."""
        ...

    def sampled(self, plan: StepPlan, tokens: SampledTokens) -> None:
        """Take the tokens of a plan."""
        ...

    def close(self) -> None:
        """End with the engine."""
        ...
