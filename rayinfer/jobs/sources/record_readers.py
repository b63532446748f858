"""Records of an input before they have ids: what readers of all formats yield."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rayinfer.jobs.sources.input_files import InputFile


@dataclass(slots=True)
class Record:
    """Record of an input, or why it cannot be one."""

    data: dict[str, Any]
    position: int  # after it, as `read` takes it
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """Place where reading begins."""

    index: int = 0  # of the first record
    position: int | None = None  # of the record before it; None: the input's begin


class RecordReader(Protocol):
    """Reader of one format."""

    @property
    def files(self) -> Sequence[InputFile]:
        """Files that are read, in order."""

    @property
    def num_records(self) -> int | None:
        """Number of records, if the format has it."""

    @property
    def columns(self) -> Sequence[str] | None:
        """Names of the columns, if they are the same for all records."""

    def read(self, start: Start, columns: Sequence[str] | None = None) -> Iterator[Record]:
        """Yield the records from a place on, with all columns or some."""
