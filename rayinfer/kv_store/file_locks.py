"""Opening of a store's file: created whole or found whole, and locked while it is in use.

Locks are the system's (flock), which releases them when a process dies. A file that is in use has a shared lock by
each of its engines; who holds the exclusive one may make it anew or delete it.
"""

import fcntl
import logging
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from rayinfer.kv_store.file_format import PAGE_BYTES, FileHeader

_logger = logging.getLogger(__name__)

_RETRY_S = 0.01
LOCK_SUFFIX = ".lock"


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedFile:
    """A file that is open with a shared lock; closing the descriptor releases it."""

    descriptor: int
    header: FileHeader
    was_damaged: bool  # or foreign, and was made anew


def open_locked(path: Path, wanted: FileHeader, timeout_s: float) -> LockedFile:
    """Open the file of this identity, or make it; raises OSError.

    Where other engines use it, its size is theirs. Otherwise a file that is not whole, not ours or of another size is
    replaced by an empty one. `timeout_s` is for a process that makes it meanwhile.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            locked = _lock_and_check(descriptor, path, wanted)
        except BaseException:
            os.close(descriptor)
            raise
        if locked is not None:
            return locked
        os.close(descriptor)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} is being made by another process, or holds blocks of another model")
        time.sleep(_RETRY_S)


def try_lock(descriptor: int, *, exclusive: bool) -> bool:
    """Lock the open file if no other holds it in a way that excludes this."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def delete_unused(path: Path) -> bool:
    """Delete a store's file unless an engine uses it; returns whether it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        if not try_lock(descriptor, exclusive=True):
            return False
        path.unlink(missing_ok=True)
        path.with_suffix(LOCK_SUFFIX).unlink(missing_ok=True)
        return True
    finally:
        os.close(descriptor)


def _lock_and_check(descriptor: int, path: Path, wanted: FileHeader) -> LockedFile | None:
    """Lock the file and check that it is whole, or make it; None to try again."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(f"{path} is no file")
    was_damaged = False
    if try_lock(descriptor, exclusive=True):
        was_damaged = _make_unless_whole(descriptor, path, wanted)
    if not try_lock(descriptor, exclusive=False):
        return None
    header = read_header(descriptor)
    # It may have been deleted, or be another's attempt to make it, before the lock was taken.
    if not _is_at(descriptor, path) or header is None or not _is_of_same_blocks(header, wanted):
        return None
    return LockedFile(descriptor=descriptor, header=header, was_damaged=was_damaged)


def read_header(descriptor: int) -> FileHeader | None:
    """Read the header of a file; None if it has none, or fewer bytes than the header says."""
    header = FileHeader.decode(os.pread(descriptor, PAGE_BYTES, 0))
    if header is None or os.fstat(descriptor).st_size != header.layout.num_bytes:
        return None
    return header


def _make_unless_whole(descriptor: int, path: Path, wanted: FileHeader) -> bool:
    """Make an empty file of what is none yet; returns whether something damaged or foreign was in its place."""
    size, header = os.fstat(descriptor).st_size, read_header(descriptor)
    is_ours = header is not None and _is_of_same_blocks(header, wanted)
    if is_ours and header is not None and header.layout == wanted.layout:
        return False
    if size:
        cause = "has another size" if is_ours else "is damaged or foreign"
        _logger.warning("KV store %s %s: it begins anew, without the blocks that it held", path, cause)
    os.ftruncate(descriptor, 0)
    os.ftruncate(descriptor, wanted.layout.num_bytes)
    # What is mapped must have its memory: a write to a page that cannot be had would end the process.
    os.posix_fallocate(descriptor, 0, wanted.layout.data_offset)
    os.pwrite(descriptor, wanted.encode(), 0)  # last: without it the file is not whole
    return size > 0 and not is_ours


def _is_of_same_blocks(header: FileHeader, wanted: FileHeader) -> bool:
    return header.identity == wanted.identity and header.layout.block_bytes == wanted.layout.block_bytes


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
