"""Executor in this process, in the caller's thread."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from rayinfer.adapters.adapter_memory import AdapterMemory
from rayinfer.engine.plan.executor import StepHandle
from rayinfer.engine.plan.executor_commands import AdapterFacts, BlockCopy, SleepLevel
from rayinfer.engine.plan.step_plan import StepPlan
from rayinfer.engine.worker.cores import Cores, pinned
from rayinfer.engine.worker.draft_models.draft_memory import DraftMemory
from rayinfer.engine.worker.memory.model_memory import ModelMemory
from rayinfer.engine.worker.model_runner import ModelRunner


class InProcessExecutor:
    """An Executor of a model runner and its model's memory."""

    stage_idle_shares: Sequence[float] = ()

    def __init__(
        self,
        runner: ModelRunner,
        memory: ModelMemory,
        cores: Cores | None = None,
        *,
        supports_async_scheduling: bool = False,
        draft: DraftMemory | None = None,
        adapters: AdapterMemory | None = None,
    ) -> None:
        self.supports_async_scheduling = supports_async_scheduling
        self.max_concurrent_batches = 2 if supports_async_scheduling else 1
        self.runner = runner
        self._memory = memory
        self._cores = cores
        self._draft = draft
        self._adapters = adapters

    def submit(self, plan: StepPlan) -> StepHandle:
        """Start the step; on a CPU, compute it."""
        self._memory.begin_step()
        try:
            with pinned(self._cores):
                return self.runner.submit(plan)
        finally:
            self._memory.end_step()

    def copy_blocks(self, copy: BlockCopy) -> None:
        """Copy now, or on a GPU in the order of the steps."""
        move = self._memory.copy_out if copy.direction == "out" else self._memory.copy_in
        move(copy.source_blocks, copy.target_blocks)

    def start_reading(self, folder: str) -> Future[Any]:
        """Start to read it in a thread."""
        assert self._adapters is not None, "an engine without adapters"
        return self._adapters.start_reading(folder)

    def load_adapter(self, folder: str) -> AdapterFacts:
        """Keep what was read, or read it."""
        assert self._adapters is not None, "an engine without adapters"
        adapter = self._adapters.load(folder)
        return AdapterFacts(adapter.digest, adapter.rank, adapter.num_bytes, adapter.slot_bytes)

    def drop_adapter(self, digest: str) -> None:
        """Forget it."""
        assert self._adapters is not None, "an engine without adapters"
        self._adapters.drop(digest)

    def release(self, level: SleepLevel, blocks_in_use: Sequence[int], window_pages_in_use: Sequence[int] = ()) -> None:
        """Free memory."""
        if level is not SleepLevel.PERSIST:
            self.runner.drop_graphs()
        if level is SleepLevel.RECOMPUTE:
            self.runner.decoder = None  # or it would keep the weights
        self._memory.release(level, blocks_in_use, window_pages_in_use)
        if self._draft is not None:
            self._draft.release(level)

    def restore(self, level: SleepLevel) -> None:
        """Allocate it again."""
        self._memory.restore(level)
        self.runner.decoder = self._memory.decoder
        if level is not SleepLevel.PERSIST:
            self.runner.recapture()
        if self._draft is not None:
            self._draft.restore(level)

    def check(self) -> None:
        """Do nothing: it lives as long as this process."""

    def shutdown(self) -> None:
        """Free the weights and the cache."""
        self.runner.decoder = None
        self._memory.drop()
        if self._draft is not None:
            self._draft.drop()
        if self._adapters is not None:
            self._adapters.close()
        if self._cores is not None:
            self._cores.release()
