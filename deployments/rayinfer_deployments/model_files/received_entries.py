"""Model folders that a node has got from others: their sizes, their latest use, and the deletion of the oldest."""

import fcntl
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from rayinfer.config import cache_folder

NAME_FILE = "name"  # beside a model's folders: how it was asked for
PART_NAMES = {True: "whole", False: "texts"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceivedEntry:
    """One received folder, with a model's weights or without them."""

    folder: str
    model: str
    num_bytes: int
    last_used_s: float  # since 1970
    is_in_use: bool  # by a process of this node


def received_root() -> Path:
    """Return where this node keeps models from other nodes."""
    return cache_folder() / "models" / "nodes"


def list_received(root: Path) -> list[ReceivedEntry]:
    """List the received folders below a cache's own, the least recently used first."""
    entries = []
    for part in PART_NAMES.values():
        for folder in root.glob(f"*/{part}/[!.]*"):
            with suppress(FileNotFoundError):  # deleted meanwhile
                entries.append(
                    ReceivedEntry(
                        folder=str(folder),
                        model=_name_of(folder),
                        num_bytes=sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
                        last_used_s=folder.stat().st_mtime,
                        is_in_use=_is_in_use(folder),
                    )
                )
    return sorted(entries, key=lambda entry: (entry.last_used_s, entry.folder))


def shrink_received(root: Path, max_bytes: int) -> list[ReceivedEntry]:
    """Delete the least recently used folders that no process uses, until the rest has at most `max_bytes`.

    Returns what was deleted.
    """
    entries = list_received(root)
    total, deleted = sum(entry.num_bytes for entry in entries), []
    for entry in entries:
        if total <= max_bytes:
            break
        if _delete(Path(entry.folder)):
            total -= entry.num_bytes
            deleted.append(entry)
    return deleted


def delete_unfinished(root: Path) -> None:
    """Delete what killed processes have left; a transfer that still runs is left alone."""
    for unfinished in root.glob("*/*/.*.unfinished"):
        folder = unfinished.with_name(unfinished.name.removeprefix(".").removesuffix(".unfinished"))
        with suppress(Timeout), lock_of(folder).acquire(timeout=0):
            shutil.rmtree(unfinished, ignore_errors=True)


def use_until_exit(folder: Path) -> None:
    """Make a folder the most recently used one, and keep it from deletion until this process ends."""
    with suppress(OSError):  # file systems without locks, or that cannot be written
        fcntl.flock(os.open(folder, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_SH)  # stays open
        os.utime(folder)


def lock_of(folder: Path) -> FileLock:
    """Return the lock of those that make or delete a folder."""
    return FileLock(folder.with_name(f".{folder.name}.lock"))


def unfinished_of(folder: Path) -> Path:
    """Return where a folder is made before it has its name, and deleted after."""
    return folder.with_name(f".{folder.name}.unfinished")


def _delete(folder: Path) -> bool:
    """Delete a folder; returns whether it was there and unused."""
    try:
        with lock_of(folder).acquire(timeout=0):
            if _is_in_use(folder):
                return False
            shutil.rmtree(unfinished_of(folder), ignore_errors=True)
            folder.rename(unfinished_of(folder))  # at once for those that look for it
            shutil.rmtree(unfinished_of(folder), ignore_errors=True)
    except (Timeout, OSError):
        return False
    return True


def _is_in_use(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _name_of(folder: Path) -> str:
    file = folder.parent.parent / NAME_FILE
    return file.read_text() if file.is_file() else "?"
