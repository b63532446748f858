"""Worker of a job in a process of its own: a task with its model, which trades rows for outputs."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rayinfer.jobs.loop.step_profiler import StepProfiler
from rayinfer.jobs.parameters import Profiling
from rayinfer.jobs.providers import InferenceTask, JobContext, ModelProvider, RowOutput, SeededRow, TaskProvider
from rayinfer.jobs.seeds import set_seeds

EXCHANGE_S = 0.5  # that an exchange waits for outputs at most
LINGER_S = 0.01  # for further outputs, so that thousands of rows a second are not as many calls
CAPACITY_FACTOR = 2  # of the task's own, for the way of rows to the worker


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerReport:
    """Facts about a worker that is ready."""

    process_id: int
    capacity: int
    batch_rows: int
    output_columns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """Outputs of rows that have ended, and a number that changes with every advance."""

    outputs: list[RowOutput]
    work_done: int


class WorkerProcess:
    """Class of the actors; one call at a time."""

    def __init__(self, task_provider: TaskProvider, model_provider: ModelProvider, context: JobContext) -> None:
        self._task_provider = task_provider
        self._model_provider = model_provider
        self._context = context
        self._task: InferenceTask | None = None
        self._profiler = StepProfiler(_own_traces(context))

    def start(self) -> WorkerReport:
        """Load the model; raises what the providers raise."""
        context = self._context
        set_seeds(context.parameters.base_seed)
        task = self._task_provider(context)
        model = self._model_provider.load(self._model_provider.initialize(context), context)
        if isinstance(model, torch.nn.Module):
            model.eval()
        task.attach(model)
        self._task = task
        self._profiler.start()
        return WorkerReport(
            process_id=os.getpid(),
            capacity=task.capacity * (CAPACITY_FACTOR if task.batch_rows == 1 else 1),
            batch_rows=task.batch_rows,
            output_columns=task.output_columns,
        )

    def exchange(self, rows: Sequence[SeededRow]) -> Exchange:
        """Take further rows and return outputs, none if there are none for a while."""
        task = self._task
        assert task is not None, "the worker has not started"
        with torch.inference_mode():
            if rows:
                task.submit(rows)
            outputs = task.collect(EXCHANGE_S)
            if outputs and task.batch_rows == 1:
                outputs += task.collect(LINGER_S)
        self._profiler.step()
        return Exchange(outputs=outputs, work_done=task.work_done)

    def close(self) -> None:
        """Free the model."""
        self._profiler.stop()
        if self._task is not None:
            self._task.close()


def _own_traces(context: JobContext) -> Profiling | None:
    """Return the settings of traces of this worker's exchanges, in a folder of its own."""
    settings = context.parameters.profiling
    if settings is None:
        return None
    return settings.model_copy(update={"traces_dir": settings.traces_dir / f"worker-{context.worker}"})
