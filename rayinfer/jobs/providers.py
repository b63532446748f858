"""Protocols between a job's loop and what it runs: tasks, models and data, and their providers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rayinfer.jobs.events import EventBus
from rayinfer.jobs.interfaces import JobLease, ProgressStore, Row, RowSink, RowSource
from rayinfer.jobs.parameters import JobParameters, Mesh


@dataclass(frozen=True, kw_only=True, slots=True)
class JobContext:
    """Settings that providers get; `worker` counts the data-parallel workers, and is 0 in the driver."""

    mesh: Mesh
    parameters: JobParameters
    worker: int = 0


@dataclass(frozen=True, slots=True)
class SeededRow:
    """Row to compute, with its seed."""

    row: Row
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RowOutput:
    """Output of one row: columns to write, or an error."""

    index: int
    columns: Mapping[str, Any] = field(default_factory=dict)  # in the order in which they are written
    error: str | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class FinalizeContext:
    """End of a job, for its task."""

    error: BaseException | None  # None: every row is written


class InferenceTask(ABC):
    """Computation of rows: takes as many as it has room for and returns them in any order, one by one.

    Used by one thread. The model is attached once it is loaded.
    """

    @property
    @abstractmethod
    def capacity(self) -> int:
        """Rows that it should hold, so that it does not run dry before it gets further ones."""

    @property
    @abstractmethod
    def output_columns(self) -> tuple[str, ...]:
        """Columns of its outputs; in error rows they are null."""

    @abstractmethod
    def submit(self, rows: Sequence[SeededRow]) -> None:
        """Take rows; one that cannot be computed becomes a RowOutput with `error`."""

    @abstractmethod
    def collect(self, timeout_s: float) -> list[RowOutput]:
        """Wait for rows to end and return them, each once; none after so many seconds."""

    @property
    def batch_rows(self) -> int:
        """Rows that are computed together: those of equal `index // batch_rows` go to one worker at once."""
        return 1

    @property
    def work_done(self) -> int:
        """Number that changes whenever it has advanced; where it stands still for too long the job ends."""
        return 0

    @property
    def rows_by_worker(self) -> Mapping[str, int]:
        """Finished rows of each worker, for the display; empty where there is one."""
        return {}

    def attach(self, model: Any) -> None:  # noqa: B027 - optional
        """Receive the loaded model."""

    def order_text(self, row: Row) -> str:
        """Return a text by whose beginning and length rows are put in the order of computation."""
        return ""

    def register_events(self, events: EventBus) -> None:  # noqa: B027 - optional
        """Subscribe to events of the job."""

    def finalize(self, context: FinalizeContext) -> None:  # noqa: B027 - optional
        """End the task: called exactly once by each run, with the error if there was one.

        A run that is killed meanwhile is followed by one that calls it again.
        """

    def close(self) -> None:  # noqa: B027 - optional
        """Free everything."""


class TaskProvider(Protocol):
    """Maker of a task, in the driver and in each worker; it travels by pickle."""

    def __call__(self, context: JobContext) -> InferenceTask:
        """Make a task, which has no model yet; raises ConfigError."""


class ModelProvider(Protocol):
    """Maker of a model in two steps, so that a wrong model is refused before anything large is read."""

    def initialize(self, context: JobContext) -> Any:
        """Make the model without its weights (torch's meta device); raises ConfigError and ModelLoadError."""

    def load(self, model: Any, context: JobContext) -> Any:
        """Allocate the model and read this worker's part of the weights; returns it ready to run."""


class RecordMaker(Protocol):
    """Maker of what is written for a row."""

    @property
    def id_column(self) -> str:
        """Column with the rows' ids."""

    def __call__(self, row: Row, output: RowOutput, output_columns: tuple[str, ...]) -> dict[str, Any]:
        """Return a row's columns in their order; the task's are null in error rows."""


@dataclass(frozen=True, slots=True)
class ColumnRecords:
    """RecordMaker of the input's columns, then `id`, the task's columns and `error`.

    A column of the input with the name of one of these is kept as `input_NAME`.
    """

    keeps_columns: bool = True  # the input's

    @property
    def id_column(self) -> str:
        """Column with the rows' ids."""
        return "id"

    def __call__(self, row: Row, output: RowOutput, output_columns: tuple[str, ...]) -> dict[str, Any]:
        """Return a row's columns in their order; the task's are null in error rows."""
        own = {"id": row.id, **dict.fromkeys(output_columns), **output.columns, "error": output.error}
        if not self.keeps_columns:
            return own
        kept = {(f"input_{name}" if name in own else name): value for name, value in row.data.items() if name != "id"}
        return {**kept, **own}


ALL_COLUMNS = ColumnRecords()


@dataclass(frozen=True, kw_only=True, slots=True)
class JobData:
    """Rows of a job, where its outputs go, and its progress."""

    source: RowSource
    sink: RowSink
    progress: ProgressStore
    job_digest: str  # of all that outputs depend on
    lease: JobLease | None = None
    records: RecordMaker = ALL_COLUMNS
    goes_on_after_change: bool = False  # from progress of another configuration


class DataProvider(Protocol):
    """Opener of a job's data, in the driver."""

    def __call__(self, context: JobContext) -> JobData:
        """Open source, progress and sink; raises JobRunning, JobChanged, SourceError and SinkError."""
