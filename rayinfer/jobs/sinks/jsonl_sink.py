"""Sink of plain JSON lines in one local file, which gets its name when it is complete."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from rayinfer.jobs.interfaces import SinkError, SinkOffset
from rayinfer.jobs.sinks.digests import file_digest
from rayinfer.jobs.sinks.encodings import RowMapping, encode_lines
from rayinfer.jobs.storage.disk import Disk
from rayinfer.jobs.storage.generations import Generations


class AppendedFile:
    """Local file under a temporary name that only grows, can be cut, and is renamed at its end."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._generations = Generations(path, disk)
        self.generation = 0
        self._file: BinaryIO | None = None
        self.size = 0

    def open(self, generation: int | None, size: int, *, fence: bool) -> None:
        """Cut a generation's file to a size and go on there; without one start anew."""
        self.close()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if generation is None:
            self.generation, size = self._generations.next(), 0
            path = self._generations.path(self.generation)
            path.touch()
            self._disk.sync_folder(path.parent)
        else:
            path = self._take_back(generation, size)
            self.generation = self._generations.copy(path) if fence else generation
        self._file = self._generations.path(self.generation).open("r+b", buffering=0)
        self._disk.truncate(self._file, size)
        self.size = size

    def append(self, data: bytes) -> None:
        """Write bytes at the end."""
        assert self._file is not None
        try:
            self._disk.write(self._file, data)
        except OSError as error:
            raise SinkError(f"{self.path}: cannot be written: {error.strerror or error}") from None
        self.size += len(data)

    def sync(self) -> None:
        """Make all bytes so far durable."""
        assert self._file is not None
        try:
            self._disk.sync(self._file)
        except OSError as error:
            raise SinkError(f"{self.path}: cannot be written: {error.strerror or error}") from None

    def finalize(self) -> dict[str, Any]:
        """Rename the file to its final name, and describe it."""
        self.sync()
        self.close()
        self._disk.replace(self._generations.path(self.generation), self.path)
        self._disk.sync_folder(self.path.parent)
        self._generations.remove()
        return {"files": [{"name": self.path.name, **file_digest(self.path)}]}

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _take_back(self, generation: int, size: int) -> Path:
        """Return the unfinished file, which is already renamed if the job ended before its record was written."""
        path = self._generations.path(generation)
        if not path.exists() and self.path.exists():
            self._disk.replace(self.path, path)
            self._disk.sync_folder(path.parent)
        if not path.exists():
            raise SinkError(f"{path}: the unfinished output is not there any more; start the job anew")
        if path.stat().st_size < size:
            raise SinkError(f"{path}: has {path.stat().st_size} bytes, fewer than the {size} of the checkpoint")
        return path


class JsonlSink:
    """JSON lines in one local file."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self._file = AppendedFile(path, disk or Disk())

    def exists(self) -> bool:
        """Say whether a file has the output's name."""
        return self._file.path.exists()

    def open(self, offset: SinkOffset | None, *, fence: bool = False) -> None:
        """Cut the unfinished file to the offset, or start anew."""
        generation, size = (None, 0) if offset is None else (offset["generation"], offset["bytes"])
        self._file.open(generation, size, fence=fence)

    def write(self, rows: Sequence[RowMapping]) -> None:
        """Append rows."""
        if rows:
            self._file.append(encode_lines(rows))

    def flush(self) -> SinkOffset:
        """Make all rows so far durable."""
        self._file.sync()
        return {"generation": self._file.generation, "bytes": self._file.size}

    def finalize(self) -> dict[str, Any]:
        """Give the file its name."""
        return self._file.finalize()

    def clean_up(self) -> None:
        """Do nothing: a finished file stands alone."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()
