"""Worker of every rank but the first: loads its part of the model, and serves rank 0's commands."""

import time
from collections.abc import Callable
from pathlib import Path

from rayinfer.config import EngineConfig
from rayinfer.engine.plan.executor import Executor
from rayinfer.engine.plan.executor_commands import SleepLevel
from rayinfer.engine.ranks.control_connection import ControlLine, LineLost
from rayinfer.engine.ranks.pipeline_link import PipelineLink
from rayinfer.engine.ranks.plan_codec import (
    Computed,
    CopyBlocks,
    Done,
    End,
    Release,
    Restore,
    RunPlan,
    computed_message,
    read_copy,
    read_plan,
)
from rayinfer.engine.ranks.rank_coordinates import place_of
from rayinfer.engine.ranks.rank_failures import is_consequence, say_last_words
from rayinfer.engine.ranks.rank_group import RankGroup
from rayinfer.engine.ranks.rendezvous import Rendezvous
from rayinfer.engine.ranks.torch_groups import STEP_TIMEOUT_S
from rayinfer.engine.worker.worker import build_worker
from rayinfer.errors import EngineDead


def run_rank(
    config: EngineConfig,
    folder: Path,
    rendezvous: Rendezvous,
    rank: int,
    is_stopped: Callable[[int], bool] | None = None,
) -> None:
    """Run rank `rank` of the engine that rank 0 builds with the same settings; returns when that engine ends.

    Raises EngineDead when rank 0 or the group is lost, and whatever fails here; rank 0 gets a report. `is_stopped`
    returns, where it can be seen, whether the process of rank 0 was stopped.
    """
    group = RankGroup.join(place_of(config, rank), rendezvous, is_stopped)
    (line,) = group.lines
    try:
        part = build_worker(config, folder, group)
        try:
            RankWorker(group, part.executor, part.link).obey()
        finally:
            part.executor.shutdown()
    except BaseException as error:
        say_last_words(line, error)
        if is_consequence(error):  # gloo's words name no rank
            raise EngineDead(f"rank {rank} has lost the others: {error}") from error
        raise
    finally:
        group.close()


class RankWorker:
    """Carries out rank 0's commands, one after the other."""

    def __init__(self, group: RankGroup, executor: Executor, link: PipelineLink | None) -> None:
        place = group.place
        self._group = group
        self._line: ControlLine = group.lines[0]
        self._executor = executor
        self._link = link
        self._answers_plans = place.stage > 0 and place.tensor_rank == 0  # others have nothing to say
        self._samples = place.is_last_stage

    def obey(self) -> None:
        """Run commands until the last one; raises EngineDead when rank 0 has gone or is hung."""
        while True:
            try:
                command = self._line.receive()  # ended by the group when rank 0 shows no sign of life
            except LineLost as error:
                raise self._loss_of_first_rank(error) from None
            if isinstance(command, RunPlan):
                self._run(command)
            elif isinstance(command, CopyBlocks):
                self._executor.copy_blocks(read_copy(command))
            elif isinstance(command, Release | Restore):
                self._move_memory(command)
            elif isinstance(command, End):
                return
            else:
                raise EngineDead(f"rank 0 says {type(command).__name__}, which is no command")

    def _run(self, command: RunPlan) -> None:
        waited_s, started = self._waiting_s, time.perf_counter()
        sampled = self._executor.submit(read_plan(command)).result()
        if self._answers_plans:
            busy_s = time.perf_counter() - started - (self._waiting_s - waited_s)
            self._say(computed_message(busy_s, sampled) if self._samples else Computed(busy_s))

    def _move_memory(self, command: Release | Restore) -> None:
        if isinstance(command, Release):
            self._executor.release(SleepLevel(command.level), command.blocks_in_use)
        else:
            self._executor.restore(SleepLevel(command.level))
        self._say(Done())

    @property
    def _waiting_s(self) -> float:
        return 0.0 if self._link is None else self._link.waiting_s

    def _say(self, answer: Done | Computed) -> None:
        try:
            self._line.send(answer, STEP_TIMEOUT_S)
        except LineLost as error:
            raise self._loss_of_first_rank(error) from None

    def _loss_of_first_rank(self, error: LineLost) -> EngineDead:
        return EngineDead(self._group.loss or f"rank 0 is lost: {error}")
