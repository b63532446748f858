"""Stores of small objects, each whole or not there: a durable local folder, or a prefix on an object store."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from rayinfer.jobs.interfaces import JobError
from rayinfer.jobs.storage.disk import Disk
from rayinfer.jobs.storage.locations import is_url, local_path, remote_location

_TEMPORARY = ".tmp"


class Store(Protocol):
    """Objects by name, each written as a whole."""

    @property
    def location(self) -> str:
        """Folder or URL, for messages."""

    def names(self) -> list[str]:
        """Return the names of all objects, sorted."""

    def read(self, name: str) -> bytes | None:
        """Return an object, or None."""

    def write(self, name: str, data: bytes) -> None:
        """Write an object durably; readers see the one before or this one."""

    def create(self, name: str, data: bytes) -> bool:
        """Write an object durably unless its name is taken; False if it is."""

    def remove(self, name: str) -> None:
        """Remove an object if it is there."""

    def remove_temporaries(self) -> None:
        """Remove what writers that were killed have left."""


class LocalStore:
    """Store in a local folder: temporary file, fsync, rename, fsync of the folder."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self.folder = folder
        self._disk = disk or Disk()

    @property
    def location(self) -> str:
        """The folder."""
        return str(self.folder)

    def names(self) -> list[str]:
        """Return the names of all files, sorted, without temporary ones."""
        try:
            return sorted(name for name in os.listdir(self.folder) if not name.endswith(_TEMPORARY))  # noqa: PTH208
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes | None:
        """Return a file's content, or None."""
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Write a file durably, by rename."""
        with self._errors(name):
            temporary = self._write_temporary(name, data)
            self._disk.replace(temporary, self.folder / name)
            self._disk.sync_folder(self.folder)

    def create(self, name: str, data: bytes) -> bool:
        """Write a file durably unless its name is taken."""
        with self._errors(name):
            temporary = self._write_temporary(name, data)
            try:
                self._disk.link(temporary, self.folder / name)
            except FileExistsError:
                return False
            finally:
                self._disk.remove(temporary)
            self._disk.sync_folder(self.folder)
        return True

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        self._disk.remove(self.folder / name)

    def remove_temporaries(self) -> None:
        """Remove temporary files of writers that were killed."""
        for path in self.folder.glob(f"*{_TEMPORARY}"):
            self._disk.remove(path)

    @contextlib.contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise JobError(f"{self.folder / name}: cannot be written: {error.strerror or error}") from None

    def _write_temporary(self, name: str, data: bytes) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / f"{name}.{os.getpid()}.{time.monotonic_ns()}{_TEMPORARY}"
        try:
            with temporary.open("wb", buffering=0) as file:
                self._disk.write(file, data)
                self._disk.sync(file)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)  # a full disk needs its space
            raise
        return temporary


class ObjectStore:
    """Store under a prefix of an object store, where one request writes an object as a whole."""

    def __init__(self, filesystem: Any, prefix: str, url: str) -> None:
        self._filesystem = filesystem
        self._prefix = prefix.rstrip("/")
        self.location = url

    def names(self) -> list[str]:
        """Return the names of all objects directly under the prefix, sorted."""
        self._filesystem.invalidate_cache()
        try:
            found = self._filesystem.ls(self._prefix, detail=False)
        except FileNotFoundError:
            return []
        return sorted(path.rpartition("/")[2] for path in found)

    def read(self, name: str) -> bytes | None:
        """Return an object, or None."""
        try:
            content: bytes = self._filesystem.cat_file(f"{self._prefix}/{name}")
        except FileNotFoundError:
            return None
        return content

    def write(self, name: str, data: bytes) -> None:
        """Write an object in one request."""
        self._filesystem.pipe_file(f"{self._prefix}/{name}", data)

    def create(self, name: str, data: bytes) -> bool:
        """Write an object unless its name is taken, in one conditional request."""
        try:
            self._filesystem.pipe_file(f"{self._prefix}/{name}", data, mode="create")
        except FileExistsError:
            return False
        return True

    def remove(self, name: str) -> None:
        """Remove an object if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.rm_file(f"{self._prefix}/{name}")

    def remove_temporaries(self) -> None:
        """Do nothing: an object that was not written as a whole is not there."""


def open_store(location: str | Path, error: Callable[[str], JobError], disk: Disk | None = None) -> Store:
    """Open the store at a local folder or a URL."""
    if not is_url(location):
        return LocalStore(local_path(location), disk)
    remote = remote_location(str(location), error)
    return ObjectStore(*remote)
