"""Worker of every rank but the first: loads its part of the model, and serves rank 0's commands."""

import time
from collections.abc import Callable
from pathlib import Path

from rayinfer.config import EngineConfig
from rayinfer.engine.plan.executor import Executor
from rayinfer.engine.plan.executor_commands import AdapterFacts, BlockCopy
from rayinfer.engine.plan.step_plan import StepPlan
from rayinfer.engine.ranks.control_connection import ConnectionLost
from rayinfer.engine.ranks.pipeline_link import PipelineLink
from rayinfer.engine.ranks.rank_coordinates import coordinates_of
from rayinfer.engine.ranks.rank_failures import is_consequence, report_failure
from rayinfer.engine.ranks.rank_group import RankGroup
from rayinfer.engine.ranks.rank_messages import (
    Done,
    DropAdapter,
    LoadAdapter,
    ReadAdapter,
    RefusedAdapter,
    Release,
    Restore,
    Shutdown,
    StageResult,
)
from rayinfer.engine.ranks.rendezvous import Rendezvous
from rayinfer.engine.worker.worker import build_worker
from rayinfer.errors import AdapterRefused, EngineDead


def run_rank(
    config: EngineConfig,
    folder: Path,
    rendezvous: Rendezvous,
    rank: int,
    is_stopped: Callable[[int], bool] | None = None,
) -> None:
    """Run rank `rank` of the engine that rank 0 builds with the same settings; returns when that engine ends.

    Raises EngineDead when rank 0 or the group is lost, and whatever fails here, which is also reported to rank 0.
    `is_stopped` returns, where it can be seen, whether the process of rank 0 was stopped.
    """
    group = RankGroup.join(coordinates_of(config, rank), rendezvous, is_stopped)
    try:
        part = build_worker(config, folder, group)
        try:
            RankWorker(group, part.executor, part.link).serve()
        finally:
            part.executor.shutdown()
    except BaseException as error:
        report_failure(group.connections[0], error)
        if is_consequence(error):  # gloo's messages name no rank
            raise EngineDead(f"rank {rank} has lost the others: {error}") from error
        raise
    finally:
        group.close()


class RankWorker:
    """Server of rank 0's commands, one after the other."""

    def __init__(self, group: RankGroup, executor: Executor, link: PipelineLink | None) -> None:
        coordinates = group.coordinates
        self._group = group
        (self._connection,) = group.connections
        self._executor = executor
        self._link = link
        self._reports_steps = coordinates.stage > 0 and coordinates.tensor_rank == 0  # others have no result
        self._samples = coordinates.is_last_stage

    def serve(self) -> None:
        """Run commands until the last one; raises EngineDead when rank 0 has exited or hangs."""
        while True:
            try:
                command = self._connection.receive()  # aborted by the group when rank 0 sends no heartbeats
            except ConnectionLost as error:
                raise self._loss_of_first_rank(error) from None
            if isinstance(command, StepPlan):
                self._run_step(command)
            elif isinstance(command, BlockCopy):
                self._executor.copy_blocks(command)
            elif isinstance(command, Release):
                self._executor.release(command.level, command.blocks_in_use, command.window_pages_in_use)
                self._reply(Done())
            elif isinstance(command, Restore):
                self._executor.restore(command.level)
                self._reply(Done())
            elif isinstance(command, ReadAdapter):
                self._executor.start_reading(command.folder)
            elif isinstance(command, LoadAdapter):
                self._reply(self._load_adapter(command.folder))
            elif isinstance(command, DropAdapter):
                self._executor.drop_adapter(command.digest)
            elif isinstance(command, Shutdown):
                return
            else:
                raise EngineDead(f"rank 0 sent {type(command).__name__}, which is no command")

    def _load_adapter(self, folder: str) -> AdapterFacts | RefusedAdapter:
        try:
            return self._executor.load_adapter(folder)
        except AdapterRefused as error:
            return RefusedAdapter(str(error))

    def _run_step(self, plan: StepPlan) -> None:
        waited_s, started = self._waiting_s, time.perf_counter()
        sampled = self._executor.submit(plan).result()
        if self._reports_steps:
            busy_s = time.perf_counter() - started - (self._waiting_s - waited_s)
            self._reply(StageResult(busy_s, sampled if self._samples else None))

    @property
    def _waiting_s(self) -> float:
        return 0.0 if self._link is None else self._link.waiting_s

    def _reply(self, reply: Done | StageResult | AdapterFacts | RefusedAdapter) -> None:
        try:
            self._connection.send(reply, self._group.limits.step_timeout_s)
        except ConnectionLost as error:
            raise self._loss_of_first_rank(error) from None

    def _loss_of_first_rank(self, error: ConnectionLost) -> EngineDead:
        return EngineDead(self._group.loss or f"rank 0 is lost: {error}")
