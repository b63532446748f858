"""Executor protocol: runs a StepPlan and returns sampled tokens."""

from collections.abc import Sequence
from typing import Protocol

from rayinfer.engine.plan.executor_commands import BlockCopy, SleepLevel
from rayinfer.engine.plan.step_plan import SampledTokens, StepPlan


class StepHandle(Protocol):
    """An in-flight step."""

    def result(self) -> SampledTokens:
        """Wait for the step's tokens; raises what the step raised."""
        ...


class Executor(Protocol):
    """Runs plans and copies blocks, all in the order in which they are submitted."""

    max_concurrent_batches: int  # steps that may be under way before the first one's tokens are asked for
    supports_async_scheduling: bool  # whether a step may continue from tokens of the one before that are in flight

    @property
    def stage_idle_shares(self) -> Sequence[float]:
        """The share of the time with work so far in which each stage of a pipeline was idle; empty without stages."""
        ...

    def submit(self, plan: StepPlan) -> StepHandle:
        """Start a step."""
        ...

    def copy_blocks(self, copy: BlockCopy) -> None:
        """Start to copy blocks between the model's pool and the second one."""
        ...

    def release(self, level: SleepLevel, blocks_in_use: Sequence[int]) -> None:
        """Give memory back; from here to `restore` nothing is submitted."""
        ...

    def restore(self, level: SleepLevel) -> None:
        """Take back what this level gave; the blocks that were in use are as they were, unless it was the deepest."""
        ...

    def check(self) -> None:
        """Raise EngineDead when no step can be run any more; costs nothing."""
        ...

    def shutdown(self) -> None:
        """Give back what it holds, in whatever state it is."""
        ...
