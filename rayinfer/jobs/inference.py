"""Inference jobs: `InferenceConfigurator` puts a job together, `Inference.infer` runs it to its end."""

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from rayinfer.jobs.events import (
    CONFIGURATION_STARTED,
    DATA_OPENED,
    FAILED,
    FINALIZED,
    FINISHED,
    MODEL_LOADED,
    READY,
    RESUMED,
    EventBus,
    Failure,
)
from rayinfer.jobs.loop.checkpoints import Checkpointer
from rayinfer.jobs.loop.deadlines import run_within
from rayinfer.jobs.loop.garbage_collection import ManualGarbageCollector, Pauses
from rayinfer.jobs.loop.progress_display import NoDisplay, ProgressDisplay
from rayinfer.jobs.loop.step_loop import LoopParts, StepLoop
from rayinfer.jobs.loop.step_profiler import StepProfiler
from rayinfer.jobs.parameters import JobParameters, Mesh, check_batching
from rayinfer.jobs.providers import (
    DataProvider,
    FinalizeContext,
    InferenceTask,
    JobContext,
    JobData,
    ModelProvider,
    TaskProvider,
)
from rayinfer.jobs.seeds import set_seeds

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobResult:
    """End of a job: the commit record, and what this run had to do with it."""

    summary: dict[str, Any]
    was_complete: bool = False  # an earlier run has committed it; nothing was loaded
    first_error: str = ""  # of this run's rows
    pauses: Pauses = field(default_factory=Pauses)


@dataclass(kw_only=True, slots=True)
class InferenceJobState:
    """Parts of a configured job."""

    context: JobContext
    task: InferenceTask
    data: JobData
    model_provider: ModelProvider
    events: EventBus
    display: ProgressDisplay
    garbage_collector: ManualGarbageCollector
    profiler: StepProfiler
    stop: threading.Event
    is_finalized: bool = False
    close: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)


class InferenceConfigurator:
    """Settings and providers of a job; `configure` opens its data, `infer` of the result runs it.

    `events` may have subscribers before; `stop`, once set, ends the job at a checkpoint.
    """

    def __init__(
        self,
        mesh: Mesh,
        parameters: JobParameters,
        model_provider: ModelProvider,
        task_provider: TaskProvider,
        data_provider: DataProvider,
        *,
        events: EventBus | None = None,
        display: ProgressDisplay | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self._context = JobContext(mesh=mesh, parameters=parameters)
        self._model_provider = model_provider
        self._task_provider = task_provider
        self._data_provider = data_provider
        self._events = events or EventBus()
        self._display = display or NoDisplay()
        self._stop = stop or threading.Event()

    def configure(self) -> "Inference":
        """Seed, make the task and open the data; no model is loaded yet. Raises ConfigError and JobError."""
        context, events = self._context, self._events
        check_batching(context.mesh, context.parameters)
        events.trigger(CONFIGURATION_STARTED, None)
        set_seeds(context.parameters.base_seed)
        with contextlib.ExitStack() as opened:
            task = self._task_provider(context)
            opened.callback(task.close)
            task.register_events(events)
            data = self._data_provider(context)
            if data.lease is not None:
                opened.callback(data.lease.release)
            opened.callback(data.sink.close)
            events.trigger(DATA_OPENED, None)
            state = InferenceJobState(
                context=context,
                task=task,
                data=data,
                model_provider=self._model_provider,
                events=events,
                display=self._display,
                garbage_collector=ManualGarbageCollector(context.parameters.garbage_collection.period_s),
                profiler=StepProfiler(context.parameters.profiling),
                stop=self._stop,
                close=opened.pop_all(),
            )
        return Inference(state)


class Inference:
    """Configured job; `infer` runs it once."""

    def __init__(self, state: InferenceJobState) -> None:
        self._state = state

    @property
    def events(self) -> EventBus:
        """Events of the job."""
        return self._state.events

    @property
    def is_complete(self) -> bool:
        """True if an earlier run has committed the job."""
        return self._state.data.progress.committed() is not None

    @property
    def task(self) -> InferenceTask:
        """The task that runs it."""
        return self._state.task

    def infer(self) -> JobResult:
        """Compute every row that an earlier run has not, finalize and commit; releases everything at its end.

        After an error the task is finalized with it and the last checkpoint stays, from which the next run goes on.
        """
        state = self._state
        with state.close:
            committed = state.data.progress.committed()
            if committed is not None:
                state.data.sink.clean_up()  # the run before may have ended between its record and this
                return JobResult(summary=committed, was_complete=True)
            try:
                result = self._run()
            except BaseException as error:
                self._fail(error)
                raise
            state.events.trigger(FINISHED, None)
            return result

    def _run(self) -> JobResult:
        state = self._state
        model = self._load_model()
        with torch.inference_mode():
            state.task.attach(model)
            checkpointer = Checkpointer(state.data, state.context.parameters.checkpointing, state.events)
            state.events.trigger(RESUMED, checkpointer.resume())
            state.events.trigger(READY, None)
            loop = StepLoop(
                LoopParts(
                    task=state.task,
                    data=state.data,
                    context=state.context,
                    checkpointer=checkpointer,
                    events=state.events,
                    display=state.display,
                    garbage_collector=state.garbage_collector,
                    profiler=state.profiler,
                    stop=state.stop,
                )
            )
            loop.run()
            self._finalize_task(None)
        summary = self._commit(checkpointer)
        return JobResult(summary=summary, first_error=loop.first_error, pauses=state.garbage_collector.pauses)

    def _load_model(self) -> Any:
        state = self._state
        provider, context = state.model_provider, state.context

        def load() -> Any:
            return provider.load(provider.initialize(context), context)

        model = run_within(context.parameters.timeouts.setup_s, "loading the model", load)
        if isinstance(model, torch.nn.Module):
            model.eval()
        state.events.trigger(MODEL_LOADED, None)
        return model

    def _commit(self, checkpointer: Checkpointer) -> dict[str, Any]:
        """Give the output its final name and write the commit record, which alone makes the job complete."""
        data, progress = self._state.data, checkpointer.progress
        if data.lease is not None:
            data.lease.check()
        output = data.sink.finalize()
        self._state.events.trigger(FINALIZED, None)
        counts = progress.counts
        summary = {
            "job_digest": data.job_digest,
            "rows": progress.rows_finished,
            "ok": counts.ok,
            "errors": counts.errors,
            "prompt_tokens": counts.prompt_tokens,
            "output_tokens": counts.output_tokens,
            "id_column": data.records.id_column,
            "output": output,
        }
        data.progress.commit(summary)
        data.sink.clean_up()
        return summary

    def _fail(self, error: BaseException) -> None:
        """Finalize the task with the error, unless it is finalized; further errors are only logged."""
        report: list[Callable[[], None]] = [
            lambda: self._finalize_task(error),
            lambda: self._state.events.trigger(FAILED, Failure(error)),
        ]
        for step in report:
            try:
                step()
            except Exception:
                logger.exception("the job had ended with %s: %s", type(error).__name__, error)

    def _finalize_task(self, error: BaseException | None) -> None:
        if not self._state.is_finalized:
            self._state.is_finalized = True
            self._state.task.finalize(FinalizeContext(error))
