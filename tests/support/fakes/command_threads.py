"""The ranks of a group as threads of this process, with executors that compute nothing."""

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from rayinfer.engine.distributed.group_executor import GroupExecutor
from rayinfer.engine.distributed.rank_worker import RankWorker
from rayinfer.engine.plan.executor_commands import BlockCopy, SleepLevel
from rayinfer.engine.plan.step_plan import SampledTokens, StepPlan
from rayinfer.engine.ranks.rank_group import RankGroup
from rayinfer.engine.ranks.rendezvous import open_rendezvous
from rayinfer.engine.worker.step_results import NO_TOKENS, FinishedStep
from rayinfer.tensor_parallel import RankCoordinates

Wait = Callable[[], object]


def _go_on() -> None:
    pass


class NotingExecutor:
    """Executor that records its plans; in the last stage each row's token is its number.

    `before_step`, and `before_move` where memory is given back or taken, may wait or fail.
    """

    max_concurrent_batches = 1
    supports_async_scheduling = False
    stage_idle_shares: Sequence[float] = ()

    def __init__(
        self, place: RankCoordinates, before_step: Wait = lambda: None, before_move: Wait = lambda: None
    ) -> None:
        self.place = place
        self.before_step = before_step
        self.before_move = before_move
        self.noted: list[object] = []

    def submit(self, plan: StepPlan) -> FinishedStep:
        self.before_step()
        self.noted.append(("plan", plan.step))
        if not self.place.is_last_stage:
            return FinishedStep(NO_TOKENS)
        return FinishedStep(SampledTokens(plan.rows[plan.samples], np.zeros(int(plan.samples.sum()), np.bool_)))

    def copy_blocks(self, copy: BlockCopy) -> None:
        self.noted.append(("copy", copy.direction, list(copy.source_blocks), list(copy.target_blocks)))

    def release(self, level: SleepLevel, blocks_in_use: Sequence[int]) -> None:
        self.before_move()
        self.noted.append(("release", level, list(blocks_in_use)))

    def restore(self, level: SleepLevel) -> None:
        self.before_move()
        self.noted.append(("restore", level))

    def check(self) -> None:
        pass

    def shutdown(self) -> None:
        self.noted.append("shutdown")


class ThreadRanks:
    """A whole group: `rank0` is its executor, and every other rank obeys in a thread until it ends or fails."""

    def __init__(
        self,
        tensor_parallel_size: int = 2,
        pipeline_parallel_size: int = 1,
        *,
        timeout_s: float = 20.0,
        before_step: dict[int, Wait] | None = None,
        before_move: dict[int, Wait] | None = None,
    ) -> None:
        sizes = (tensor_parallel_size, pipeline_parallel_size)
        num_ranks = tensor_parallel_size * pipeline_parallel_size
        steps, moves = before_step or {}, before_move or {}
        self.executors = [
            NotingExecutor(RankCoordinates(rank, *sizes), *(waits.get(rank, _go_on) for waits in (steps, moves)))
            for rank in range(num_ranks)
        ]
        self.failures: dict[int, BaseException] = {}
        self.groups: dict[int, RankGroup] = {}
        host = open_rendezvous(timeout_s=timeout_s)
        self.threads = [
            threading.Thread(target=self._be, args=(RankCoordinates(rank, *sizes), host.rendezvous), daemon=True)
            for rank in range(1, num_ranks)
        ]
        for thread in self.threads:
            thread.start()
        self.group = self.groups[0] = RankGroup.host(RankCoordinates(0, *sizes), host)
        self.graces: list[float] = []  # with which the ranks were ended
        self.rank0 = GroupExecutor(self.group, self.executors[0], self.graces.append)

    def _be(self, place: RankCoordinates, rendezvous) -> None:  # type: ignore[no-untyped-def]
        group = self.groups[place.rank] = RankGroup.join(place, rendezvous)
        try:
            RankWorker(group, self.executors[place.rank], None).obey()
        except BaseException as error:
            self.failures[place.rank] = error
        finally:
            group.close()

    def freeze(self, rank: int) -> None:
        """Let a rank show no more sign of life, as a stopped process does."""
        while rank not in self.groups:  # a thread of its own puts it there
            time.sleep(0.01)
        self.groups[rank].beats.stop()

    def join(self, timeout_s: float = 20.0) -> None:
        """Wait until every rank has ended."""
        for thread in self.threads:
            thread.join(timeout_s)
            assert not thread.is_alive()


def plan_of(step: int, num_requests: int = 3) -> StepPlan:
    """A step in which every request has one token and samples."""
    return StepPlan(
        step=step,
        rows=np.arange(num_requests),
        token_ids=np.ones(num_requests, np.int32),
        positions=np.zeros(num_requests, np.int64),
        slot_mapping=np.arange(num_requests),
        cu_seqlens_q=np.arange(num_requests + 1, dtype=np.int32),
        seq_lens=np.ones(num_requests, np.int32),
        block_tables=np.zeros((num_requests, 1), np.int32),
        samples=np.ones(num_requests, np.bool_),
    )
