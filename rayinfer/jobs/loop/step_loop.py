"""Step loop of a job: keeps the task full, writes rows in the input's order and saves checkpoints."""

import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from rayinfer.jobs.events import STEP_FINISHED, STEP_STARTED, EventBus, StepContext
from rayinfer.jobs.interfaces import JobError, Row
from rayinfer.jobs.loop.checkpoints import Checkpointer, add_output
from rayinfer.jobs.loop.deadlines import StepDeadline
from rayinfer.jobs.loop.error_limit import ErrorLimit
from rayinfer.jobs.loop.garbage_collection import ManualGarbageCollector
from rayinfer.jobs.loop.progress_display import ProgressDisplay
from rayinfer.jobs.loop.row_window import RowWindow
from rayinfer.jobs.loop.step_profiler import StepProfiler
from rayinfer.jobs.providers import InferenceTask, JobContext, JobData, RowOutput, SeededRow
from rayinfer.jobs.seeds import row_seed

COLLECT_S = 0.5  # that a step waits for rows at most, before it looks at cancellation and deadlines
CANCEL_PERIOD_S = 1.0  # between two looks for a cancellation


class JobCancelled(JobError):
    """A job that was cancelled; it goes on from its checkpoint when it is started again."""


class JobInterrupted(JobError):
    """A job that was asked to stop; it goes on from its checkpoint when it is started again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopParts:
    """Parts of the loop that its owner makes."""

    task: InferenceTask
    data: JobData
    context: JobContext
    checkpointer: Checkpointer
    events: EventBus
    display: ProgressDisplay
    garbage_collector: ManualGarbageCollector
    profiler: StepProfiler
    stop: threading.Event  # set by whatever wants the job to stop at its next checkpoint
    clock: Callable[[], float] = time.monotonic


class StepLoop:
    """Loop over steps; in each, rows that have ended are collected, and others take their place."""

    def __init__(self, parts: LoopParts) -> None:
        self._parts = parts
        self._task, self._checkpointer = parts.task, parts.checkpointer
        parameters = parts.context.parameters
        progress = parts.checkpointer.progress
        rows = parts.data.source.rows(progress.position)
        rows_ahead = parts.checkpointer.rows_ahead
        self._window = RowWindow(rows, parameters.window, parts.task.order_text, rows_ahead)
        # Rows that are computed together must be so again: of them, checkpoints keep none before their turn.
        self._kept = self._window if parts.task.batch_rows == 1 else None
        self._base_seed = parameters.base_seed
        self._counts = progress.counts  # of written rows
        self._ended_counts = functools.reduce(add_output, rows_ahead.values(), progress.counts)
        self._limit = ErrorLimit(parameters)
        self._deadline = StepDeadline(parameters.timeouts.step_s, parts.clock)
        self._in_task: dict[int, Row] = {}
        self._step = 0
        self._next_look_s = parts.clock()

    def run(self) -> None:
        """Run until every row is written and checkpointed.

        Raises JobCancelled and JobInterrupted after a last checkpoint, TooManyErrors, StepTimeout, and whatever ends
        the task, the source or the sink.
        """
        parts = self._parts
        with parts.garbage_collector, parts.profiler, parts.display:
            parts.display.begin(parts.data.source.num_rows, self._rows_finished)
            while not self._window.is_empty:
                self._run_step()
                parts.garbage_collector.collect_periodic()
                parts.profiler.step()
            self._limit.check(self._counts, is_complete=True)
            self._checkpointer.save()

    @property
    def first_error(self) -> str:
        """The first error row of this run; empty if there was none."""
        return self._limit.first_error

    @property
    def _rows_finished(self) -> int:
        """Rows that are written, or have ended and wait for their turn."""
        return self._checkpointer.progress.rows_finished + self._window.num_ended

    def _run_step(self) -> None:
        events = self._parts.events
        events.trigger(STEP_STARTED, StepContext(self._step, 0, self._counts))
        self._fill_task()
        outputs = self._task.collect(COLLECT_S) if self._in_task else []
        for output in outputs:
            self._end(self._in_task.pop(output.index), output)
        self._write()
        self._checkpointer.save_if_due(self._kept)
        self._deadline.check(self._task.work_done, len(self._in_task))
        self._stop_if_asked()
        self._parts.display.show(self._rows_finished, self._ended_counts, self._task.rows_by_worker)
        events.trigger(STEP_FINISHED, StepContext(self._step, len(outputs), self._counts))
        self._step += 1

    def _fill_task(self) -> None:
        while (room := self._task.capacity - len(self._in_task)) > 0:
            rows = self._window.take(room)
            if not rows:
                return
            for row in rows:
                if row.error is not None:
                    self._end(row, RowOutput(index=row.index, error=row.error))
            fresh = [row for row in rows if row.error is None]
            self._in_task.update((row.index, row) for row in fresh)
            if fresh:
                self._task.submit([SeededRow(row, row_seed(self._base_seed, row.id)) for row in fresh])

    def _end(self, row: Row, output: RowOutput) -> None:
        if output.error is not None:
            self._limit.note(row.id, output.error)
        self._window.end(output)
        self._ended_counts = add_output(self._ended_counts, output)

    def _write(self) -> None:
        finished = self._window.pop_finished()
        if not finished:
            return
        columns, make_record = self._task.output_columns, self._parts.data.records
        records = [make_record(each.row, each.output, columns) for each in finished]
        for each in finished:
            self._counts = add_output(self._counts, each.output)
        self._checkpointer.write(records, finished[-1].row.end, self._counts)
        self._limit.check(self._counts)

    def _stop_if_asked(self) -> None:
        if self._parts.stop.is_set():
            self._checkpointer.save(self._kept)
            raise JobInterrupted(f"stopped after {self._rows_finished:,} rows")
        now = self._parts.clock()
        if now < self._next_look_s:
            return
        self._next_look_s = now + CANCEL_PERIOD_S
        if self._parts.data.progress.cancel_requested():
            self._checkpointer.save(self._kept)
            raise JobCancelled(f"cancelled after {self._rows_finished:,} rows")
