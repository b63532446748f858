"""Ranks of a group as threads of this process, with executors that compute nothing."""

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from rayinfer.engine.distributed.group_executor import GroupExecutor
from rayinfer.engine.distributed.rank_worker import RankWorker
from rayinfer.engine.plan.executor_commands import AdapterFacts, BlockCopy, SleepLevel
from rayinfer.engine.plan.step_plan import SampledTokens, StepPlan
from rayinfer.engine.ranks.rank_group import RankGroup
from rayinfer.engine.ranks.rendezvous import RendezvousHost
from rayinfer.engine.worker.step_results import NO_TOKENS, FinishedStep
from rayinfer.errors import AdapterRefused
from rayinfer.liveness import DEFAULT_LIMITS, LivenessLimits
from rayinfer.tensor_parallel import RankCoordinates
from support.fakes.step_plans import make_plan

Wait = Callable[[], object]


def _do_nothing() -> None:
    pass


class RecordingExecutor:
    """Executor that records its plans; in the last stage each row's token is its number.

    `before_step`, and `before_move` where memory is released or allocated, may wait or fail.
    """

    max_concurrent_batches = 1
    supports_async_scheduling = False
    stage_idle_shares: Sequence[float] = ()

    def __init__(
        self, coordinates: RankCoordinates, before_step: Wait = lambda: None, before_move: Wait = lambda: None
    ) -> None:
        self.coordinates = coordinates
        self.before_step = before_step
        self.before_move = before_move
        self.recorded: list[object] = []
        self.adapters: dict[str, str] = {}  # digests by folder; others are refused

    def load_adapter(self, folder: str) -> AdapterFacts:
        if (digest := self.adapters.get(folder)) is None:
            raise AdapterRefused(f"{folder} is not there")
        self.recorded.append(("load", digest))
        return AdapterFacts(digest, rank=4, num_bytes=100, slot_bytes=100)

    def drop_adapter(self, digest: str) -> None:
        self.recorded.append(("drop", digest))

    def submit(self, plan: StepPlan) -> FinishedStep:
        self.before_step()
        self.recorded.append(("plan", plan.step))
        if not self.coordinates.is_last_stage:
            return FinishedStep(NO_TOKENS)
        return FinishedStep(SampledTokens(plan.rows[plan.samples], np.zeros(int(plan.samples.sum()), np.bool_)))

    def copy_blocks(self, copy: BlockCopy) -> None:
        self.recorded.append(("copy", copy.direction, list(copy.source_blocks), list(copy.target_blocks)))

    def release(self, level: SleepLevel, blocks_in_use: Sequence[int], window_pages_in_use: Sequence[int] = ()) -> None:
        self.before_move()
        self.recorded.append(("release", level, list(blocks_in_use)))

    def restore(self, level: SleepLevel) -> None:
        self.before_move()
        self.recorded.append(("restore", level))

    def check(self) -> None:
        pass

    def shutdown(self) -> None:
        self.recorded.append("shutdown")


class ThreadRanks:
    """A whole group: `rank0` is its executor; every other rank serves in a thread until it exits or fails."""

    def __init__(
        self,
        tensor_parallel_size: int = 2,
        pipeline_parallel_size: int = 1,
        *,
        timeout_s: float = 20.0,
        limits: LivenessLimits = DEFAULT_LIMITS,
        before_step: dict[int, Wait] | None = None,
        before_move: dict[int, Wait] | None = None,
    ) -> None:
        sizes = (tensor_parallel_size, pipeline_parallel_size)
        num_ranks = tensor_parallel_size * pipeline_parallel_size
        steps, moves = before_step or {}, before_move or {}
        self.executors = [
            RecordingExecutor(
                RankCoordinates(rank, *sizes), *(waits.get(rank, _do_nothing) for waits in (steps, moves))
            )
            for rank in range(num_ranks)
        ]
        self.failures: dict[int, BaseException] = {}
        self.groups: dict[int, RankGroup] = {}
        host = RendezvousHost(timeout_s=timeout_s, limits=limits)
        self.threads = [
            threading.Thread(target=self._serve, args=(RankCoordinates(rank, *sizes), host.rendezvous), daemon=True)
            for rank in range(1, num_ranks)
        ]
        for thread in self.threads:
            thread.start()
        self.group = self.groups[0] = RankGroup.host(RankCoordinates(0, *sizes), host)
        self.graces: list[float] = []  # of the calls that ended the ranks
        self.rank0 = GroupExecutor(self.group, self.executors[0], self.graces.append)

    def _serve(self, coordinates: RankCoordinates, rendezvous) -> None:  # type: ignore[no-untyped-def]
        group = self.groups[coordinates.rank] = RankGroup.join(coordinates, rendezvous)
        try:
            RankWorker(group, self.executors[coordinates.rank], None).serve()
        except BaseException as error:
            self.failures[coordinates.rank] = error
        finally:
            group.close()

    def stop_heartbeats(self, rank: int) -> None:
        """Let a rank send no more heartbeats, as a stopped process does."""
        while rank not in self.groups:  # a thread of its own puts it there
            time.sleep(0.01)
        self.groups[rank].monitor.stop()

    def join(self, timeout_s: float = 20.0) -> None:
        """Wait until every rank has exited."""
        for thread in self.threads:
            thread.join(timeout_s)
            assert not thread.is_alive()


def plan_of(step: int, num_requests: int = 3) -> StepPlan:
    """Make a step in which every request has one token and samples."""
    return make_plan(dict.fromkeys(range(num_requests), (0, 1)), step=step)
