"""Task over Ray actors: rows go to workers in batches; those of a dead one go to the others, and it is replaced.

Ray is imported here, so this module is loaded by jobs with several workers only. Ray must run already.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from rayinfer.errors import EngineDead, RayinferError
from rayinfer.jobs.events import EventBus
from rayinfer.jobs.interfaces import JobError, Row
from rayinfer.jobs.providers import (
    FinalizeContext,
    InferenceTask,
    JobContext,
    ModelProvider,
    RowOutput,
    SeededRow,
    TaskProvider,
)
from rayinfer.jobs.workers.row_queue import MAX_DEATHS, RowQueue
from rayinfer.jobs.workers.worker_process import Exchange, WorkerProcess, WorkerReport

MAX_STARTS = 3  # of one worker, one after the other, none of which got ready


class WorkerLost(JobError):
    """A worker that cannot be started, or a row with which workers die again and again."""


@dataclass(frozen=True, slots=True)
class ActorModelProvider:
    """ModelProvider of the driver: starts one actor for each data-parallel worker, each with a model of its own."""

    task_provider: TaskProvider
    model_provider: ModelProvider

    def initialize(self, context: JobContext) -> Any:
        """Check the model's settings, as each worker will."""
        return self.model_provider.initialize(context)

    def load(self, model: Any, context: JobContext) -> "WorkerActors":
        """Start the workers and wait until all are ready."""
        workers = WorkerActors(self.task_provider, self.model_provider, context)
        try:
            workers.wait_until_ready()
        except BaseException:
            workers.close()
            raise
        return workers


@dataclass(frozen=True, slots=True)
class ActorTaskProvider:
    """TaskProvider of the driver around that of the workers."""

    task_provider: TaskProvider

    def __call__(self, context: JobContext) -> "ActorTask":
        """Make the task, and one of the workers' for its settings; raises ConfigError."""
        return ActorTask(self.task_provider(context))


@dataclass(slots=True, eq=False)
class _Worker:
    """Place of a worker; its actor may be replaced."""

    number: int
    actor: Any
    call: Any  # of `start` or `exchange`, while one is in flight
    since: float  # its last advance
    report: WorkerReport | None = None  # once it is ready
    rows: dict[int, SeededRow] = field(default_factory=dict)
    work_done: int = 0
    num_rows: int = 0  # finished so far
    num_lost_starts: int = 0  # since it was last ready

    @property
    def name(self) -> str:
        return f"worker {self.number}"


class WorkerActors:
    """Actors of a job, and the rows in each."""

    def __init__(
        self,
        task_provider: TaskProvider,
        model_provider: ModelProvider,
        context: JobContext,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._providers = (task_provider, model_provider)
        self._context = context
        self._clock = clock
        self._actor_class = ray.remote(WorkerProcess).options(**_resources(context.mesh.data_parallel))
        self._queue = RowQueue()
        self._num_changes = 0
        self._workers: list[_Worker] = []
        for number in range(context.mesh.data_parallel):
            self._workers.append(_Worker(number, None, None, 0.0))
            self._start(self._workers[-1])

    def wait_until_ready(self) -> None:
        """Return once every worker has its model; raises what one of them raised."""
        for worker in self._workers:
            worker.report = ray.get(worker.call) if worker.report is None else worker.report
            worker.call = None
        reports = [worker.report for worker in self._workers if worker.report is not None]
        self.capacity = sum(report.capacity for report in reports)
        self.batch_rows, self.output_columns = reports[0].batch_rows, reports[0].output_columns

    @property
    def process_ids(self) -> list[int]:
        """Processes of the workers that are ready."""
        return [worker.report.process_id for worker in self._workers if worker.report is not None]

    @property
    def rows_by_worker(self) -> dict[str, int]:
        """Finished rows of each worker."""
        return {worker.name: worker.num_rows for worker in self._workers}

    @property
    def work_done(self) -> int:
        """Sum of the workers' own, and of their replacements."""
        return self._num_changes + sum(worker.work_done for worker in self._workers)

    def submit(self, rows: Sequence[SeededRow]) -> None:
        """Queue rows for the workers."""
        self._queue.extend(rows)

    def collect(self, timeout_s: float) -> list[RowOutput]:
        """Send rows to workers with room and wait for outputs; raises WorkerLost."""
        self._exchange()
        calls = {worker.call: worker for worker in self._workers if worker.call is not None}
        if not calls:
            return []
        ready, _ = ray.wait(list(calls), num_returns=1, timeout=timeout_s)
        if ready:
            ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=0)
        outputs: list[RowOutput] = []
        for call in ready:
            outputs += self._receive(calls[call])
        self._replace_stuck()
        return outputs

    def close(self) -> None:
        """End the actors."""
        for worker in self._workers:
            ray.kill(worker.actor)
            worker.report = worker.call = None

    def _exchange(self) -> None:
        idle = [worker for worker in self._workers if worker.report is not None and worker.call is None]
        for worker in sorted(idle, key=lambda each: len(each.rows)):
            rows = self._take_rows(worker)
            if rows and not worker.rows:
                worker.since = self._clock()
            worker.rows.update((each.row.index, each) for each in rows)
            if worker.rows:
                worker.call = worker.actor.exchange.remote(rows)

    def _take_rows(self, worker: _Worker) -> list[SeededRow]:
        """Take a worker's part of the waiting rows."""
        assert worker.report is not None
        share = max(1, math.ceil(len(self._queue) / len(self._workers)))
        return self._queue.take(
            worker.rows,
            room=min(worker.report.capacity - len(worker.rows), share),
            batch_rows=worker.report.batch_rows,
            is_idle=not any(each.rows for each in self._workers),
        )

    def _receive(self, worker: _Worker) -> list[RowOutput]:
        call, worker.call = worker.call, None
        try:
            result = ray.get(call)
        except RayActorError as error:
            self._replace(worker, error)
            return []
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, EngineDead):
                self._replace(worker, cause)
                return []
            if isinstance(cause, RayinferError):
                raise cause from None
            raise WorkerLost(f"{worker.name}: {type(cause).__name__}: {cause}") from error
        worker.since = self._clock()
        if isinstance(result, WorkerReport):
            worker.report, worker.num_lost_starts = result, 0
            return []
        return self._take_outputs(worker, result)

    def _take_outputs(self, worker: _Worker, result: Exchange) -> list[RowOutput]:
        if result.work_done != worker.work_done:
            worker.work_done = result.work_done
        for output in result.outputs:
            del worker.rows[output.index]
            self._queue.finish(output.index)
        worker.num_rows += len(result.outputs)
        return result.outputs

    def _replace_stuck(self) -> None:
        """Replace workers that take too long to start or to advance."""
        timeouts, now = self._context.parameters.timeouts, self._clock()
        for worker in self._workers:
            limit_s = timeouts.setup_s if worker.report is None else timeouts.step_s
            if worker.call is not None and now - worker.since > limit_s:
                self._replace(worker, WorkerLost(f"no answer for {limit_s:g} s"))
            elif worker.report is None:
                self._num_changes += 1  # starting is an advance

    def _replace(self, worker: _Worker, error: Exception) -> None:
        """Start another actor in a worker's place; its rows go to whichever has room first."""
        reason = f"{' '.join(str(error).split()):.300}"
        worker.num_lost_starts += worker.report is None
        if worker.num_lost_starts >= MAX_STARTS:
            raise WorkerLost(f"{worker.name} died {MAX_STARTS} times while it started: {reason}") from error
        fatal = self._queue.return_rows(worker.rows)
        if fatal:
            rows = ", ".join(each.row.id for each in fatal[:5])
            raise WorkerLost(f"{MAX_DEATHS} workers died with {rows}, the last with no other rows: {reason}") from error
        ray.kill(worker.actor)
        worker.rows.clear()
        self._start(worker)

    def _start(self, worker: _Worker) -> None:
        context = JobContext(mesh=self._context.mesh, parameters=self._context.parameters, worker=worker.number)
        self._num_changes += worker.work_done + 1
        worker.work_done, worker.report, worker.since = 0, None, self._clock()
        worker.actor = self._actor_class.remote(*self._providers, context)
        worker.call = worker.actor.start.remote()


class ActorTask(InferenceTask):
    """InferenceTask of the driver; the computation is the actors'."""

    def __init__(self, task: InferenceTask) -> None:
        self._task = task  # without a model: of it, the settings are used
        self._workers: WorkerActors | None = None

    @property
    def workers(self) -> WorkerActors:
        """The actors."""
        assert self._workers is not None, "the task has no workers yet"
        return self._workers

    @property
    def capacity(self) -> int:
        """The workers' together."""
        return self.workers.capacity

    @property
    def batch_rows(self) -> int:
        """The workers'."""
        return self._task.batch_rows

    @property
    def output_columns(self) -> tuple[str, ...]:
        """The workers'."""
        return self.workers.output_columns

    @property
    def work_done(self) -> int:
        """The workers' together."""
        return self.workers.work_done

    @property
    def rows_by_worker(self) -> Mapping[str, int]:
        """Finished rows of each worker."""
        return self.workers.rows_by_worker

    def attach(self, model: Any) -> None:
        """Receive the actors, which have their models."""
        self._workers = model

    def order_text(self, row: Row) -> str:
        """Return what the workers' task orders by."""
        return self._task.order_text(row)

    def register_events(self, events: EventBus) -> None:
        """Subscribe the workers' task; events of forward passes stay in the workers."""
        self._task.register_events(events)

    def submit(self, rows: Sequence[SeededRow]) -> None:
        """Queue rows for the workers."""
        self.workers.submit(rows)

    def collect(self, timeout_s: float) -> list[RowOutput]:
        """Wait for rows to end; raises WorkerLost."""
        return self.workers.collect(timeout_s)

    def finalize(self, context: FinalizeContext) -> None:
        """End the workers' task, here in the driver."""
        self._task.finalize(context)

    def close(self) -> None:
        """End the actors."""
        if self._workers is not None:
            self._workers.close()


def _resources(num_workers: int) -> dict[str, Any]:
    """Return each actor's share of the cluster: a GPU where there are enough, and up to one CPU for its place."""
    resources = ray.cluster_resources()
    share = min(1.0, math.floor(resources.get("CPU", 1.0) / num_workers * 100) / 100)
    num_gpus = 1 if resources.get("GPU", 0.0) >= num_workers else 0
    return {"num_cpus": share, "num_gpus": num_gpus, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
