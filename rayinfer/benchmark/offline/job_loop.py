"""Cost of a job's loop beside an engine of known speed, in virtual time: processor time of the loop, steps of 1 ms.

The engine steps beside the loop; it loses time only where the loop leaves it without rows.
"""

import json
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from rayinfer.benchmark.report import Table
from rayinfer.jobs.events import STEP_FINISHED, StepContext
from rayinfer.jobs.inference import Inference, InferenceConfigurator
from rayinfer.jobs.interfaces import Row
from rayinfer.jobs.parameters import Mesh, job_parameters
from rayinfer.jobs.progress.folder import ProgressFolder
from rayinfer.jobs.providers import InferenceTask, JobContext, JobData, RowOutput, SeededRow
from rayinfer.jobs.sinks.formats import open_sink
from rayinfer.jobs.sources.formats import open_source

NUM_SEQUENCES, NUM_STEPS, STEP_S = 64, 32, 0.001  # 2,000 rows a second
PROMPT = "The quick brown fox jumps over the lazy dog, and row {0} is one of many that begin so. " * 3
TEXT = " and then it sleeps under the tree" * 4
MIB = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class JobLoopReport:
    """Rate of the loop, and of the engine alone."""

    num_rows: int
    rows_per_s: float
    engine_rows_per_s: float
    share: float  # of the engine's rate
    loop_cpu_us: float  # processor time of the loop for each row
    rss_growth_mib: float  # from a tenth of the rows to the last one, at most

    def tables(self) -> list[Table]:
        """Return all figures."""
        rows: list[tuple[str, object]] = [
            ("rows", self.num_rows),
            ("rows/s (virtual)", self.rows_per_s),
            ("engine alone, rows/s", self.engine_rows_per_s),
            ("share of the engine's rate", self.share),
            ("loop, us of processor time a row", self.loop_cpu_us),
            ("growth of memory, MiB", self.rss_growth_mib),
        ]
        return [Table("job loop", ("", "figure"), rows)]


class VirtualEngineTask(InferenceTask):
    """Engine of 64 rows at once in virtual time, which passes by steps and by the loop's own processor time."""

    output_columns = ("text", "finish_reason", "usage")

    def __init__(self) -> None:
        self.virtual_s = 0.0
        self.loop_cpu_s = 0.0
        self._cpu_s = time.thread_time()
        self._step_at_s = 0.0  # when the current step began
        self._running: deque[tuple[int, int]] = deque()  # steps left at its begin, and index: oldest first
        self._steps = 0
        self._waiting: deque[int] = deque()

    @property
    def capacity(self) -> int:
        """Rows that run, and as many that wait."""
        return 2 * NUM_SEQUENCES

    @property
    def work_done(self) -> int:
        """Steps."""
        return self._steps

    def order_text(self, row: Row) -> str:
        """Return the prompt."""
        return str(row.data["prompt"])

    def submit(self, rows: Sequence[SeededRow]) -> None:
        """Queue rows; time begins with the first ones."""
        if not self._steps and not self._waiting:
            self._cpu_s = time.thread_time()
        self._waiting.extend(each.row.index for each in rows)
        if not self._running:
            self._step_at_s = max(self._step_at_s, self.virtual_s + time.thread_time() - self._cpu_s)

    def collect(self, timeout_s: float) -> list[RowOutput]:
        """Let the loop's processor time pass, then time up to the next end of a row."""
        cpu_s = time.thread_time()
        self.loop_cpu_s += cpu_s - self._cpu_s
        self.virtual_s += cpu_s - self._cpu_s
        ended = self._steps_until_now()
        while not ended and (self._running or self._waiting):
            self.virtual_s = self._step_at_s + STEP_S
            ended = self._steps_until_now()
        self._cpu_s = time.thread_time()
        usage = {"prompt_tokens": 70, "completion_tokens": NUM_STEPS, "total_tokens": 70 + NUM_STEPS}
        columns = {"text": TEXT, "finish_reason": "length", "usage": usage}
        return [RowOutput(index=index, columns=columns, prompt_tokens=70, output_tokens=NUM_STEPS) for index in ended]

    def _steps_until_now(self) -> list[int]:
        ended: list[int] = []
        while self._step_at_s + STEP_S <= self.virtual_s and (self._running or self._waiting):
            while self._waiting and len(self._running) < NUM_SEQUENCES:
                self._running.append((self._steps + NUM_STEPS, self._waiting.popleft()))
            self._steps += 1
            self._step_at_s += STEP_S
            while self._running and self._running[0][0] <= self._steps:
                ended.append(self._running.popleft()[1])
        return ended


class _NoModel:
    def initialize(self, context: JobContext) -> None:
        return None

    def load(self, model: None, context: JobContext) -> None:
        return None


def write_rows(folder: Path, num_rows: int, prompt: str) -> None:
    """Write the input of `virtual_job`."""
    with (folder / "in.jsonl").open("w") as file:
        file.writelines(json.dumps({"prompt": prompt.format(index)}) + "\n" for index in range(num_rows))


def virtual_job(folder: Path, task: VirtualEngineTask, stop: threading.Event | None = None) -> Inference:
    """Configure a job over a folder's `in.jsonl` with the virtual engine."""

    def open_data(context: JobContext) -> JobData:
        progress = ProgressFolder(folder / "progress")
        return JobData(
            source=open_source(folder / "in.jsonl", scan_store=progress),
            sink=open_sink(folder / "out.jsonl"),
            progress=progress,
            job_digest="benchmark",
        )

    return InferenceConfigurator(
        Mesh(), job_parameters(), _NoModel(), lambda context: task, open_data, stop=stop
    ).configure()


def measure_job_loop(num_rows: int) -> JobLoopReport:
    """Run a job over JSONL files with the virtual engine."""
    task, process = VirtualEngineTask(), psutil.Process()
    resident: list[tuple[int, int]] = []

    def record_memory(step: StepContext) -> None:
        if step.step % 50 == 0:
            resident.append((step.counts.ok, process.memory_info().rss))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder, num_rows, PROMPT)
        inference = virtual_job(folder, task)
        inference.events.subscribe(STEP_FINISHED, record_memory)
        inference.infer()
    rows_per_s, engine_rows_per_s = num_rows / task.virtual_s, NUM_SEQUENCES / (NUM_STEPS * STEP_S)
    late = [size for rows, size in resident if rows >= num_rows / 10] or [0]
    return JobLoopReport(
        num_rows=num_rows,
        rows_per_s=rows_per_s,
        engine_rows_per_s=engine_rows_per_s,
        share=rows_per_s / engine_rows_per_s,
        loop_cpu_us=task.loop_cpu_s / num_rows * 1e6,
        rss_growth_mib=(max(late) - late[0]) / MIB,
    )
