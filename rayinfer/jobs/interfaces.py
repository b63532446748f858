"""Interfaces between a job's loop, its sources and sinks, and its progress: rows, positions, checkpoints."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rayinfer.errors import ConfigError, RayinferError

PROGRESS_VERSION = 1


@dataclass(frozen=True, slots=True)
class Position:
    """Last finished row, and where its source goes on reading."""

    index: int
    position: int  # opaque: the row's own


@dataclass(frozen=True, slots=True)
class Row:
    """Row of a data set; with `error` it cannot be computed and becomes a row of the output with that error."""

    index: int  # in the whole input, from 0
    id: str
    data: dict[str, Any]
    position: int  # where its source goes on reading after it; opaque to all others
    error: str | None = None

    @property
    def end(self) -> Position:
        """Position after this row, for `RowSource.rows` of a resumed job."""
        return Position(self.index, self.position)


class RowSource(Protocol):
    """Rows of a data set in a fixed order; the n-th one is always the same."""

    @property
    def digest(self) -> str:
        """Digest of what is read (files with size and time of change) and how."""

    @property
    def num_rows(self) -> int | None:
        """Number of rows, if it is known."""

    def rows(self, after: Position | None = None) -> Iterator[Row]:
        """Yield the rows after a position; rows before it are not parsed."""


SinkOffset = dict[str, Any]  # JSON-able: where a checkpoint ends in a sink


class RowSink(Protocol):
    """Output of rows in order, which can be cut back to any offset that `flush` has returned."""

    def exists(self) -> bool:
        """Say whether something has the output's final name already, finished by this job or written by others."""

    def open(self, offset: SinkOffset | None, *, fence: bool = False) -> None:
        """Cut everything after the offset, or start anew; `fence` where an earlier writer may still run.

        A fenced sink moves to files of its own (or locks the earlier writer out), so late writes of that one change
        nothing.
        """

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows; they are durable after the next `flush`."""

    def flush(self) -> SinkOffset:
        """Make all rows so far durable, and return their end."""

    def finalize(self) -> dict[str, Any]:
        """Give the output its final name, once, and describe it (JSON-able: files, sizes, digests) for the record.

        May be called again after `open` with the last offset, as a job does that ended between this and its record.
        """

    def clean_up(self) -> None:
        """Remove what only a resumed job would need; after the commit record."""

    def close(self) -> None:
        """Release files; rows after the last `flush` may be lost."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Rows and tokens of a job so far; after a resume they go on from the checkpoint's."""

    ok: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Checkpoint of a job: everything up to `position` is durable in the sink, and nothing else counts."""

    job_digest: str
    rows_finished: int
    position: Position | None  # None: before the first row
    sink_offset: SinkOffset | None
    seed_scheme: str
    fencing_token: int  # of the lease of the copy that wrote it
    counts: Counts = field(default_factory=Counts)
    rows_ahead: int = 0  # that have ended after `position`, and are kept beside the checkpoint until their turn
    version: int = PROGRESS_VERSION


class ProgressStore(Protocol):
    """Durable progress of a job, apart from its output (`progress_folder.ProgressFolder`)."""

    def load(self) -> Progress | None:
        """Return the newest whole checkpoint, or None before the first."""

    def load_rows_ahead(self) -> bytes:
        """Return what was saved with the newest whole checkpoint; empty if it is damaged."""

    def save(self, progress: Progress, rows_ahead: bytes = b"") -> None:
        """Write a checkpoint durably; the one before is kept in case this one is damaged."""

    def commit(self, summary: Mapping[str, Any]) -> None:
        """Record that the job is complete; only this makes it so."""

    def committed(self) -> dict[str, Any] | None:
        """Return the record of a complete job."""

    def request_cancel(self) -> None:
        """Ask the running copy to stop after its next checkpoint."""

    def cancel_requested(self) -> bool:
        """Say whether a cancellation waits."""


class JobLease(Protocol):
    """Right of one copy of a job to write (`lease.acquire_lease`)."""

    @property
    def fencing_token(self) -> int:
        """Number that grows with every copy; checkpoints with a lower one are ignored."""

    @property
    def predecessor_may_run(self) -> bool:
        """True if the copy before did not end provably: its lease expired; its sink has to be fenced."""

    def check(self) -> None:
        """Raise LeaseLost if another copy has taken over; before each write."""

    def release(self) -> None:
        """Stop the heartbeat, and let the next copy start at once."""


class JobError(RayinferError):
    """A job that cannot start or go on; the message names the file or the row."""


class JobRunning(JobError):
    """Another copy of the job runs; the message names its host and process."""


class LeaseLost(JobError):
    """Another copy of the job has taken over, so this one must not write any more."""


class JobChanged(JobError, ConfigError):
    """The job's progress comes from another configuration or input."""


class SourceError(JobError):
    """An input that cannot be read."""


class SinkError(JobError):
    """An output that cannot be written, or does not fit its checkpoint."""
