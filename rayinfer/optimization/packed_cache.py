"""Disk cache of packed weights, so that a model is packed and quantized once per machine."""

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash
from filelock import FileLock

from rayinfer.config import DEFAULT_PACKED_CACHE_BYTES
from rayinfer.optimization.packed_entries import note_use, shrink
from rayinfer.optimization.tensor_file import StoredTensors, read_tensors, write_tensors
from rayinfer.startup_steps import startup_step

_logger = logging.getLogger(__name__)

SPARE_BYTES = 1 << 30  # of disk space that others are left


class PackedCache:
    """A folder of entries, each either whole or not there; any number of processes may use it at once.

    Where entries take more than `max_bytes`, the least recently used ones are deleted. A folder that cannot be written
    or is full costs one warning and nothing else.
    """

    def __init__(self, folder: Path, *, max_bytes: int = DEFAULT_PACKED_CACHE_BYTES) -> None:
        self.folder = folder
        self._max_bytes = max_bytes

    def fetch(self, key: str, build: Callable[[], StoredTensors]) -> StoredTensors:
        """Return the entry; where there is none, `build` makes it, in one process while others wait for it.

        What is returned lies in mapped memory unless it could not be kept.
        """
        entry = self.folder / key
        if (stored := read_tensors(entry)) is not None:
            note_use(entry)
            return stored
        try:
            with self._locked(key):
                if (stored := read_tensors(entry)) is not None:  # another process was faster
                    return stored
                built = build()
                with startup_step("keeping packed weights for the next start"):
                    return self._keep(entry, built) or built
        except _NoLock as error:
            _warn(entry, error.__cause__)
            return build()

    def _keep(self, entry: Path, built: StoredTensors) -> StoredTensors | None:
        unfinished = entry.with_name(f".{entry.name}.unfinished")
        try:
            if built.num_bytes > self._max_bytes:
                raise OSError(f"{built.num_bytes} bytes are more than the cache may have ({self._max_bytes})")
            shrink(self.folder, self._max_bytes - built.num_bytes)
            if shutil.disk_usage(self.folder).free < built.num_bytes + SPARE_BYTES:
                raise OSError(f"less than {(built.num_bytes + SPARE_BYTES) / 2**30:.1f} GiB are free")
            for leftover in (unfinished, entry):  # of a killed process; damaged or foreign
                shutil.rmtree(leftover, ignore_errors=True)
            unfinished.mkdir()
            write_tensors(unfinished, built)
            unfinished.rename(entry)
            shrink(self.folder, self._max_bytes, keep=(entry.name,))  # others may have added entries meanwhile
            return read_tensors(entry)
        except OSError as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            _warn(entry, error)
            return None

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / f".{key}.lock")
            lock.acquire()
        except OSError as error:
            raise _NoLock from error
        try:
            yield
        finally:
            lock.release()


class _NoLock(Exception):
    """The folder cannot be written."""


def entry_key(**facts: str | int | bool | None) -> str:
    """Name an entry by all that decides what it contains."""
    return xxhash.xxh3_128_hexdigest(json.dumps(facts, sort_keys=True).encode())


def _warn(entry: Path, error: BaseException | None) -> None:
    _logger.warning("Packed weights cannot be kept, so they are made again at every start: %s: %s", entry, error)
