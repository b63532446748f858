"""Files of an input: a path, a folder, a pattern or a URL of them, in the order of their names."""

import glob
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from rayinfer.jobs.interfaces import SourceError
from rayinfer.jobs.storage.locations import is_url, local_path, remote_location

_BUFFER_BYTES = 1 << 20
_PATTERN = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class InputFile:
    """File of an input."""

    name: str  # path or URL
    size: int  # bytes, as stored
    stamp: str  # changes when the file does: time of change, or the store's tag
    remote: Any = None  # fsspec's file system, where it is no local file
    path: str = ""

    @property
    def identity(self) -> list[str]:
        """What the digest of an input takes from the file."""
        return [self.name, str(self.size), self.stamp]

    def open(self) -> IO[bytes]:
        """Open the file for reading; it can seek."""
        try:
            if self.remote is not None:
                return cast(IO[bytes], self.remote.open(self.path, "rb"))
            return Path(self.path).open("rb", buffering=_BUFFER_BYTES)
        except OSError as error:
            raise SourceError(f"{self.name}: cannot be read: {error.strerror or error}") from None


def find_input_files(location: str | Path, endings: tuple[str, ...] = ()) -> list[InputFile]:
    """Return the files of a path, a pattern or a folder (with these endings), sorted by name."""
    if is_url(location):
        found = list(_remote_files(str(location), endings))
    else:
        found = list(_local_files(local_path(location), endings))
    if not found:
        raise SourceError(f"{location}: no such file" + (f" with the ending {' or '.join(endings)}" if endings else ""))
    return sorted(found, key=lambda file: file.name)


def is_folder(location: str | Path) -> bool:
    """Say whether an input is a folder of files."""
    if not is_url(location):
        return local_path(location).is_dir()
    remote = remote_location(str(location), SourceError)
    return bool(remote.filesystem.isdir(remote.path))


def read_small_file(location: str) -> bytes | None:
    """Return the content of a file beside an input, or None where there is none."""
    try:
        if not is_url(location):
            return local_path(location).read_bytes()
        remote = remote_location(location, SourceError)
        return cast(bytes, remote.filesystem.cat_file(remote.path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _local_files(path: Path, endings: tuple[str, ...]) -> Iterator[InputFile]:
    if path.is_dir():
        paths = [found for found in path.rglob("*") if found.name.endswith(endings) and not _is_hidden(found, path)]
    elif path.exists() or not _PATTERN & set(str(path)):
        paths = [path] if path.exists() else []
    else:
        paths = [Path(found) for found in glob.glob(str(path), recursive=True)]  # noqa: PTH207
    for found in paths:
        if found.is_file():
            status = found.stat()
            yield InputFile(str(found), status.st_size, str(status.st_mtime_ns), path=str(found))
        elif found.exists() and not found.is_dir():
            raise SourceError(f"{found}: is no regular file, so a resumed job could not read it again")


def _remote_files(url: str, endings: tuple[str, ...]) -> Iterator[InputFile]:
    remote = remote_location(url, SourceError)
    filesystem, path = remote.filesystem, remote.path
    filesystem.invalidate_cache()
    try:
        if _PATTERN & set(path):
            paths = filesystem.glob(path)
        elif filesystem.isdir(path):
            paths = [found for found in filesystem.find(path) if found.endswith(endings)]
        else:
            paths = [path] if filesystem.exists(path) else []
        for found in paths:
            facts = filesystem.info(found)
            stamp = facts.get("ETag") or facts.get("LastModified") or facts.get("created") or facts.get("mtime")
            yield InputFile(filesystem.unstrip_protocol(found), facts["size"], str(stamp), filesystem, found)
    except OSError as error:
        raise SourceError(f"{url}: cannot be read: {error}") from None


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
