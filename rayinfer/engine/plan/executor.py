"""Executor protocol: runs a StepPlan and returns sampled tokens."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from rayinfer.engine.plan.executor_commands import AdapterFacts, BlockCopy, SleepLevel
from rayinfer.engine.plan.step_plan import SampledTokens, StepPlan


class StepHandle(Protocol):
    """An in-flight step."""

    def result(self) -> SampledTokens:
        """Wait for the step's tokens; raises what the step raised."""
        ...


class Executor(Protocol):
    """Runs plans and copies blocks, all in the order in which they are submitted."""

    max_concurrent_batches: int  # steps that may be in flight before the first one's tokens are read
    supports_async_scheduling: bool  # whether a step may continue from tokens of the one before that are in flight

    @property
    def stage_idle_shares(self) -> Sequence[float]:
        """Fraction of the busy time so far in which each pipeline stage was idle; empty without stages."""
        ...

    def submit(self, plan: StepPlan) -> StepHandle:
        """Start a step."""
        ...

    def copy_blocks(self, copy: BlockCopy) -> None:
        """Start to copy blocks between the model's pool and the second one."""
        ...

    def start_reading(self, folder: str) -> Future[Any]:
        """Start to read an adapter beside the steps, for `load_adapter`; done once this rank has read it."""
        ...

    def load_adapter(self, folder: str) -> AdapterFacts:
        """Load an adapter on every rank; raises AdapterRefused, and no rank keeps it then."""
        ...

    def drop_adapter(self, digest: str) -> None:
        """Forget an adapter that no request has any more."""
        ...

    def release(self, level: SleepLevel, blocks_in_use: Sequence[int], window_pages_in_use: Sequence[int] = ()) -> None:
        """Free memory; nothing is submitted until `restore`."""
        ...

    def restore(self, level: SleepLevel) -> None:
        """Allocate again what this level freed; blocks that were in use are restored, except at level 2."""
        ...

    def check(self) -> None:
        """Raise EngineDead when no step can be run any more; costs nothing."""
        ...

    def shutdown(self) -> None:
        """Free what it holds, in any state."""
        ...
