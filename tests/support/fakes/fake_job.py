"""Parts of jobs in memory: a task that computes rows in batches, a sink, a progress store and a lease."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rayinfer.jobs.events import EventBus
from rayinfer.jobs.inference import InferenceConfigurator
from rayinfer.jobs.interfaces import JobLease, Position, Progress, Row, RowSink
from rayinfer.jobs.parameters import JobParameters, Mesh, job_parameters
from rayinfer.jobs.providers import FinalizeContext, InferenceTask, JobContext, JobData, RowOutput, SeededRow


@dataclass
class NumberedRows:
    """Rows with the columns `prompt` and `n`; those in `errors` could not be read."""

    num_rows: int
    errors: frozenset[int] = frozenset()
    digest: str = "numbered"
    prompt: Callable[[int], str] = str
    num_read: int = 0

    def rows(self, after: Position | None = None) -> Iterator[Row]:
        for index in range(0 if after is None else after.position, self.num_rows):
            self.num_read += 1
            data = {"prompt": self.prompt(index), "n": index}
            yield Row(index, f"row-{index}", data, index + 1, "not readable" if index in self.errors else None)


class ListSink:
    """Sink into a list; what is not flushed is lost when it is opened again."""

    def __init__(self) -> None:
        self.records: list[Mapping[str, Any]] = []
        self.num_finalized = 0

    def open(self, offset: Any, *, fence: bool = False) -> None:
        del self.records[0 if offset is None else offset["rows"] :]

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.records += rows

    def flush(self) -> dict[str, Any]:
        return {"rows": len(self.records)}

    def finalize(self) -> dict[str, Any]:
        self.num_finalized += 1
        return {"rows": len(self.records)}

    def exists(self) -> bool:
        return False

    def clean_up(self) -> None:
        pass

    def close(self) -> None:
        pass


class MemoryProgress:
    """Progress store in memory."""

    def __init__(self) -> None:
        self.saved: list[Progress] = []
        self.rows_ahead = b""
        self.record: dict[str, Any] | None = None
        self.is_cancelled = False

    def load(self) -> Progress | None:
        return self.saved[-1] if self.saved else None

    def load_rows_ahead(self) -> bytes:
        return self.rows_ahead

    def save(self, progress: Progress, rows_ahead: bytes = b"") -> None:
        self.saved.append(progress)
        self.rows_ahead = rows_ahead

    def commit(self, summary: Mapping[str, Any]) -> None:
        self.record = dict(summary)

    def committed(self) -> dict[str, Any] | None:
        return self.record

    def request_cancel(self) -> None:
        self.is_cancelled = True

    def cancel_requested(self) -> bool:
        return self.is_cancelled


class ShufflingTask(InferenceTask):
    """Task that ends rows in another order than they came, `batch_size` at a time; its output is the row's seed."""

    output_columns = ("text",)

    def __init__(self, batch_size: int = 4, capacity: int = 8) -> None:
        self._batch_size = batch_size
        self._capacity = capacity
        self.rows: list[SeededRow] = []
        self.submitted: list[int] = []
        self.finalized: list[BaseException | None] = []
        self.fail_at: int | None = None
        self.bad_rows: frozenset[int] = frozenset()
        self.is_closed = False
        self.num_collected = 0

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def work_done(self) -> int:
        return self.num_collected

    def order_text(self, row: Row) -> str:
        return str(row.data["prompt"])

    def submit(self, rows: Sequence[SeededRow]) -> None:
        self.rows += rows
        self.submitted += [each.row.index for each in rows]
        assert len(self.rows) <= self._capacity

    def collect(self, timeout_s: float) -> list[RowOutput]:
        ended = self.rows[: self._batch_size][::-1]
        del self.rows[: self._batch_size]
        self.num_collected += len(ended)
        if self.fail_at is not None and self.num_collected >= self.fail_at:
            raise RuntimeError("the task broke")
        return [self._output(each) for each in ended]

    def _output(self, each: SeededRow) -> RowOutput:
        index = each.row.index
        if index in self.bad_rows:
            return RowOutput(index=index, error="not computable")
        return RowOutput(index=index, columns={"text": f"{each.seed:x}"}, prompt_tokens=1, output_tokens=2)

    def finalize(self, context: FinalizeContext) -> None:
        self.finalized.append(context.error)

    def close(self) -> None:
        self.is_closed = True


class NoModel:
    """ModelProvider of tasks without a model."""

    def initialize(self, context: JobContext) -> None:
        return None

    def load(self, model: None, context: JobContext) -> None:
        return None


@dataclass
class MemoryJob:
    """Job whose input, output and progress stay in memory, so that it can be run again."""

    source: NumberedRows
    task: Callable[[], InferenceTask] = ShufflingTask
    parameters: JobParameters = field(default_factory=lambda: job_parameters(checkpointing={"period_rows": 5}))
    mesh: Mesh = field(default_factory=Mesh)
    sink: RowSink = field(default_factory=ListSink)
    progress: Any = field(default_factory=MemoryProgress)
    lease: JobLease | None = None
    events: EventBus = field(default_factory=EventBus)
    model: Any = field(default_factory=NoModel)
    digest: str = "job"
    tasks: list[Any] = field(default_factory=list)

    def configurator(self, **more: Any) -> InferenceConfigurator:
        return InferenceConfigurator(
            self.mesh, self.parameters, self.model, self._make_task, self._open_data, events=self.events, **more
        )

    def run(self, **more: Any) -> Any:
        return self.configurator(**more).configure().infer()

    @property
    def indices(self) -> list[int]:
        return [record["n"] for record in self.sink.records]

    def _make_task(self, context: JobContext) -> InferenceTask:
        self.tasks.append(self.task())
        return self.tasks[-1]

    def _open_data(self, context: JobContext) -> JobData:
        return JobData(
            source=self.source, sink=self.sink, progress=self.progress, job_digest=self.digest, lease=self.lease
        )
