"""Time that a job needs to go on after many finished rows: from its configuration to the end of its first step."""

import contextlib
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from rayinfer.benchmark.offline.job_loop import VirtualEngineTask, virtual_job, write_rows
from rayinfer.benchmark.report import Table
from rayinfer.jobs.events import RESUMED, STEP_FINISHED, StepContext
from rayinfer.jobs.interfaces import Progress
from rayinfer.jobs.loop.step_loop import JobInterrupted

ROWS_LEFT = 5_000
PROMPT = "row {0}"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobResumeReport:
    """Cost of one resumption, without a model."""

    num_finished: int
    seconds: float
    cpu_s: float  # processor time of it

    def tables(self) -> list[Table]:
        """Return all figures."""
        rows: list[tuple[str, object]] = [
            ("finished rows", self.num_finished),
            ("s to the end of the first step", self.seconds),
            ("s of processor time", self.cpu_s),
        ]
        return [Table("resumption, without a model", ("", "figure"), rows)]


def measure_job_resume(num_rows: int) -> JobResumeReport:
    """Stop a job with the virtual engine after so many rows, and time its continuation."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder, num_rows + ROWS_LEFT, PROMPT)
        stop = threading.Event()

        def stop_after(step: StepContext) -> None:
            if step.counts.ok >= num_rows:
                stop.set()

        inference = virtual_job(folder, VirtualEngineTask(), stop)
        inference.events.subscribe(STEP_FINISHED, stop_after)
        with contextlib.suppress(JobInterrupted):
            inference.infer()
        return _resume(folder)


def _resume(folder: Path) -> JobResumeReport:
    ends: list[tuple[float, float]] = []
    begin = time.perf_counter(), time.process_time()
    inference = virtual_job(folder, VirtualEngineTask())
    inference.events.subscribe(
        STEP_FINISHED, lambda _: ends.append((time.perf_counter(), time.process_time())) if not ends else None
    )
    finished: list[int] = []

    def note_progress(saved: Progress | None) -> None:
        assert saved is not None, "the first run has left a checkpoint"
        finished.append(saved.rows_finished + saved.rows_ahead)

    inference.events.subscribe(RESUMED, note_progress)
    inference.infer()
    return JobResumeReport(num_finished=finished[0], seconds=ends[0][0] - begin[0], cpu_s=ends[0][1] - begin[1])
