"""Places of parts: frames of one compressed local file, or objects of a folder or an object store."""

from pathlib import Path
from typing import Any

import msgspec
import xxhash

from rayinfer.jobs.interfaces import SinkOffset
from rayinfer.jobs.sinks.jsonl_sink import AppendedFile
from rayinfer.jobs.storage.disk import Disk
from rayinfer.jobs.storage.stores import LocalStore, Store

MANIFEST = "_manifest.json"
_PART = "part-"
_DIGITS = 6


class FrameFile:
    """Parts as gzip members or Zstandard frames of one local file."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self._file = AppendedFile(path, disk or Disk())
        self.store: Store = LocalStore(path.parent, disk)
        self.pending_prefix = f".{path.name}.pending-"

    def exists(self) -> bool:
        """Say whether a file has the output's name."""
        return self._file.path.exists()

    def open(self, offset: SinkOffset | None, *, fence: bool) -> bytes | None:
        """Cut the unfinished file to the offset, or start anew."""
        generation, size = (None, 0) if offset is None else (offset["generation"], offset["bytes"])
        self._file.open(generation, size, fence=fence)
        return None

    def append(self, part: bytes) -> None:
        """Append a frame."""
        self._file.append(part)

    def flush(self) -> SinkOffset:
        """Make all frames durable."""
        self._file.sync()
        return {"generation": self._file.generation, "bytes": self._file.size}

    def finalize(self) -> dict[str, Any]:
        """Give the file its name."""
        return self._file.finalize()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class PartFolder:
    """Parts as objects of a store; each is durable when it is there, and a manifest makes them complete."""

    pending_prefix = "_pending-"

    def __init__(self, store: Store, ending: str) -> None:
        self.store = store
        self._ending = ending
        self._num_parts, self._num_bytes, self._digest = 0, 0, ""

    def exists(self) -> bool:
        """Say whether the folder has parts."""
        return bool(part_names(self.store))

    def open(self, offset: SinkOffset | None, *, fence: bool) -> bytes | None:
        """Remove parts after the offset, and the manifest; a late writer could only write the same parts again."""
        found = offset or {"num_parts": 0, "bytes": 0, "digest": ""}
        self._num_parts, self._num_bytes, self._digest = found["num_parts"], found["bytes"], found["digest"]
        self.store.remove(MANIFEST)
        for name in part_names(self.store):
            if name >= self._name(self._num_parts):
                self.store.remove(name)
        return self.store.read(self._name(0)) if self._num_parts else None

    def append(self, part: bytes) -> None:
        """Write a part as a whole."""
        self.store.write(self._name(self._num_parts), part)
        self._num_parts += 1
        self._num_bytes += len(part)
        self._digest = chained_digest(self._digest, part)

    def flush(self) -> SinkOffset:
        """Return the end of the parts, which are durable already."""
        return {"num_parts": self._num_parts, "bytes": self._num_bytes, "digest": self._digest}

    def finalize(self) -> dict[str, Any]:
        """Write the manifest, without which the output is not complete."""
        described = {
            "num_parts": self._num_parts,
            "bytes": self._num_bytes,
            "digest": self._digest,
            "parts": [self._name(number) for number in range(self._num_parts)],
        }
        self.store.write(MANIFEST, msgspec.json.format(msgspec.json.encode(described)))
        del described["parts"]
        return described

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _name(self, number: int) -> str:
        return f"{_PART}{number:0{_DIGITS}d}{self._ending}"


def part_names(store: Store) -> list[str]:
    """Return the names of all parts in a store, in order."""
    return [name for name in store.names() if name.startswith(_PART)]


def chained_digest(before: str, part: bytes) -> str:
    """Return the digest of parts up to one, from that of those before it."""
    return xxhash.xxh3_128_hexdigest(before.encode() + xxhash.xxh3_128_digest(part))
