"""Executor without a model, for measurements of what is beside it."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from rayinfer.engine.plan.executor_commands import AdapterFacts, BlockCopy, SleepLevel
from rayinfer.engine.plan.step_plan import SampledTokens, StepPlan
from rayinfer.engine.worker.step_results import FinishedStep

TOKEN_ID = 7


class FixedTokenExecutor:
    """Executor that samples the same token for every request at once."""

    max_concurrent_batches = 1
    supports_async_scheduling = False
    stage_idle_shares: Sequence[float] = ()

    def submit(self, plan: StepPlan) -> FinishedStep:
        """Return the step's tokens."""
        return FinishedStep(fixed_tokens(plan))

    def check(self) -> None:
        """Do nothing: it cannot fail."""

    def copy_blocks(self, copy: BlockCopy) -> None:
        """Refuse: there are no blocks."""
        raise AssertionError("there are no blocks to copy")

    def start_reading(self, folder: str) -> Future[Any]:
        """Refuse: there is no model."""
        raise AssertionError(f"there is no model for the adapter in {folder}")

    def load_adapter(self, folder: str) -> AdapterFacts:
        """Refuse: there is no model."""
        raise AssertionError(f"there is no model for the adapter in {folder}")

    def drop_adapter(self, digest: str) -> None:
        """Refuse: there are no adapters."""
        raise AssertionError(f"there is no adapter {digest}")

    def release(self, level: SleepLevel, blocks_in_use: Sequence[int], window_pages_in_use: Sequence[int] = ()) -> None:
        """Refuse: there is no memory."""
        raise AssertionError("there is no memory to release")

    def restore(self, level: SleepLevel) -> None:
        """Refuse: there is no memory."""
        raise AssertionError("there is no memory to restore")

    def shutdown(self) -> None:
        """Do nothing: it holds nothing."""


def fixed_tokens(plan: StepPlan) -> SampledTokens:
    """Sample the same token for every request of a step that samples."""
    count = int(np.count_nonzero(plan.samples))
    return SampledTokens(np.full(count, TOKEN_ID, np.int64), np.zeros(count, np.bool_))
