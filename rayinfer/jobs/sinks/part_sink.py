"""Sink in parts of a fixed number of rows, so that no bytes depend on when checkpoints were made."""

from collections.abc import Sequence
from typing import Any, Protocol

from rayinfer.jobs.interfaces import SinkError, SinkOffset
from rayinfer.jobs.sinks.encodings import Encoding, RowMapping
from rayinfer.jobs.storage.stores import Store


class PartTarget(Protocol):
    """Place of encoded parts, in order."""

    @property
    def store(self) -> Store:
        """Store of the rows that wait for the others of their part."""

    @property
    def pending_prefix(self) -> str:
        """Begin of these rows' names in the store."""

    def exists(self) -> bool:
        """Say whether parts, or a file of them, are there."""

    def open(self, offset: SinkOffset | None, *, fence: bool) -> bytes | None:
        """Cut everything after the offset, or start anew; return the first part, if there is one, for its schema."""

    def append(self, part: bytes) -> None:
        """Append a part."""

    def flush(self) -> SinkOffset:
        """Make all parts durable, and return their end."""

    def finalize(self) -> dict[str, Any]:
        """Finish and describe the output."""

    def close(self) -> None:
        """Release files."""


class PartSink:
    """Sink whose target takes parts of a fixed number of rows; rows of an unfinished part are kept beside it."""

    def __init__(self, target: PartTarget, encoding: Encoding, rows_per_part: int) -> None:
        self._target = target
        self._encoding = encoding
        self._rows_per_part = rows_per_part
        self._pending: list[RowMapping] = []
        self._num_parts = 0
        self._generation = 1
        self._checkpointed = ""  # name of the pending rows at the last offset that a checkpoint may have

    def exists(self) -> bool:
        """Say whether parts, or a file of them, are there."""
        return self._target.exists()

    def open(self, offset: SinkOffset | None, *, fence: bool = False) -> None:
        """Cut the output to the offset, and take back the rows of its unfinished part."""
        self._encoding.begin(None)
        if offset is None:
            self._target.open(None, fence=fence)
            self._num_parts, self._pending = 0, []
            self._generation = 1 + self._newest_generation()
            self._checkpointed = self._pending_name()
            return
        if offset["rows_per_part"] != self._rows_per_part:
            raise SinkError(
                f"the job was begun with parts of {offset['rows_per_part']} rows, not {self._rows_per_part}"
            )
        self._encoding.begin(self._target.open(offset["target"], fence=fence))
        self._num_parts, self._generation = offset["num_parts"], offset["generation"]
        self._pending = self._read_pending(offset["pending"])
        self._checkpointed = self._pending_name()
        if fence:
            self._generation = 1 + self._newest_generation()

    def write(self, rows: Sequence[RowMapping]) -> None:
        """Append rows; a part is written when its last row is there."""
        for row in rows:
            self._pending.append(row)
            if len(self._pending) == self._rows_per_part:
                self._write_part()

    def flush(self) -> SinkOffset:
        """Make the parts and the rows of the unfinished one durable."""
        offset = self._target.flush()
        if self._pending:
            self._target.store.write(self._pending_name(), self._encoding.encode_pending(self._pending))
        # The checkpoint of this flush is not written yet: until it is, a job goes on from the one before.
        for name in self._pending_names():
            if name < self._checkpointed:
                self._target.store.remove(name)
        self._checkpointed = self._pending_name()
        return {
            "target": offset,
            "num_parts": self._num_parts,
            "pending": len(self._pending),
            "rows_per_part": self._rows_per_part,
            "generation": self._generation,
        }

    def finalize(self) -> dict[str, Any]:
        """Write the last, shorter part, and finish the output."""
        if self._pending:
            self._write_part()
        self._target.flush()
        return self._target.finalize()

    def clean_up(self) -> None:
        """Remove the kept rows of unfinished parts."""
        for name in self._pending_names():
            self._target.store.remove(name)

    def close(self) -> None:
        """Release files."""
        self._target.close()

    def _write_part(self) -> None:
        self._target.append(self._encoding.encode(self._pending))
        self._pending = []
        self._num_parts += 1

    def _pending_name(self) -> str:
        return f"{self._target.pending_prefix}{self._generation:04d}-{self._num_parts:08d}"

    def _pending_names(self) -> list[str]:
        return [name for name in self._target.store.names() if name.startswith(self._target.pending_prefix)]

    def _newest_generation(self) -> int:
        names = self._pending_names()
        return int(names[-1].removeprefix(self._target.pending_prefix).partition("-")[0]) if names else 0

    def _read_pending(self, num_rows: int) -> list[RowMapping]:
        """Read the rows of the unfinished part; there may be more than the checkpoint has."""
        if not num_rows:
            return []
        content = self._target.store.read(self._pending_name())
        rows = self._encoding.decode_pending(content) if content is not None else []
        if len(rows) < num_rows:
            raise SinkError(f"{self._target.store.location}/{self._pending_name()}: rows of the checkpoint are missing")
        return list(rows[:num_rows])
