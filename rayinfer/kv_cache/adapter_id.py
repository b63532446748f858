"""Identity of an adapter: its name, and the digest of its files (no torch here)."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import xxhash

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
MAX_BYTES = {
    CONFIG_FILE: 1 << 20,
    WEIGHTS_FILE: 32 << 30,  # rank 512 in float32 for all layers of a model of 70 billion parameters is 25 GiB
}
FilesStamp = tuple[tuple[int, ...], ...]  # of each file what changes with its content, whatever its times were set to
PIECE_BYTES = 1 << 20  # read at once


class AdapterFileRefused(OSError):
    """A file of an adapter that is not read: it is no regular file, or too large."""


def adapter_id(name: str, digest: str) -> str:
    """Join name and content: what requests, salts of prefixes and traces have, so that equal ids are equal weights."""
    return f"{name}@{digest}"


def name_in(adapter_id: str) -> str:
    """Return the name of an id."""
    return adapter_id.rpartition("@")[0]


def digest_in(adapter_id: str) -> str:
    """Return the digest of an id."""
    return adapter_id.rpartition("@")[2]


def content_digest(config: bytes, weights: bytes) -> str:
    """Compute the digest of both files' contents."""
    return str(xxhash.xxh3_128_hexdigest(b"%d:%b%b" % (len(config), config, weights)))


def folder_digest(folder: Path) -> str:
    """Compute the digest of both files in an adapter's folder, whose content is not checked.

    Raises OSError where one is missing, and AdapterFileRefused.
    """
    config = read_config_file(folder)
    digest = xxhash.xxh3_128(b"%d:%b" % (len(config), config))
    for piece in _pieces(folder / WEIGHTS_FILE):
        digest.update(piece)
    return str(digest.hexdigest())


def check_adapter_files(folder: Path) -> None:
    """Check that both files can be read; raises OSError where one is missing, and AdapterFileRefused."""
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        _check_file(folder / name, (folder / name).stat())


def files_stamp(folder: Path) -> FilesStamp | None:
    """Return what shows that an adapter's files have changed; None where one is missing."""
    try:
        stats = [(folder / name).stat() for name in (CONFIG_FILE, WEIGHTS_FILE)]
    except OSError:
        return None
    return tuple((each.st_size, each.st_mtime_ns, each.st_ctime_ns, each.st_ino) for each in stats)


def read_config_file(folder: Path) -> bytes:
    """Read the settings in an adapter's folder; raises OSError where they are missing, and AdapterFileRefused."""
    return b"".join(_pieces(folder / CONFIG_FILE))


def _pieces(file: Path) -> Iterator[bytes]:
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)  # a pipe without a writer would wait for one
    try:
        _check_file(file, os.fstat(descriptor))
        num_bytes = 0
        while piece := os.read(descriptor, PIECE_BYTES):
            num_bytes += len(piece)
            _check_size(file, num_bytes)  # it may grow
            yield piece
    finally:
        os.close(descriptor)


def _check_file(file: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise AdapterFileRefused(f"{file} is no regular file")
    _check_size(file, status.st_size)


def _check_size(file: Path, num_bytes: int) -> None:
    if num_bytes > MAX_BYTES[file.name]:
        raise AdapterFileRefused(f"{file} has more than {MAX_BYTES[file.name]:,} bytes")
