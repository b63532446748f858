"""Entries of the packed-weight cache on the disk: their sizes, their latest use, and the deletion of the oldest."""

import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

DATA_FILE = "weights.safetensors"  # touched with every use
DATA_FILES = "weights.*"  # of earlier versions, too
UNFINISHED = ".*.unfinished"


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedEntry:
    """The packed weights of one model, or of one rank's part of it."""

    key: str
    num_bytes: int
    last_used_s: float  # since 1970


def list_entries(folder: Path) -> list[PackedEntry]:
    """List the entries of a cache folder, the least recently used first."""
    entries = []
    for file in folder.glob(f"[!.]*/{DATA_FILES}"):
        with suppress(FileNotFoundError):  # deleted meanwhile
            status = file.stat()
            entries.append(PackedEntry(key=file.parent.name, num_bytes=status.st_size, last_used_s=status.st_mtime))
    return sorted(entries, key=lambda entry: (entry.last_used_s, entry.key))


def note_use(entry: Path) -> None:
    """Make an entry the most recently used one; a folder that cannot be written keeps its order."""
    with suppress(OSError):
        os.utime(entry / DATA_FILE)


def shrink(folder: Path, max_bytes: int, *, keep: Collection[str] = ()) -> list[PackedEntry]:
    """Delete the least recently used entries until the rest has at most `max_bytes`, but none to `keep`.

    Engines that have an entry mapped keep its pages. Returns what was deleted.
    """
    entries = list_entries(folder)
    total, deleted = sum(entry.num_bytes for entry in entries), []
    for entry in entries:
        if total <= max_bytes:
            break
        if entry.key in keep:
            continue
        shutil.rmtree(folder / entry.key, ignore_errors=True)
        total -= entry.num_bytes
        deleted.append(entry)
    return deleted


def delete_unfinished(folder: Path) -> None:
    """Delete the unfinished entries of killed processes; a process that still writes cannot keep its weights then."""
    for unfinished in folder.glob(UNFINISHED):
        shutil.rmtree(unfinished, ignore_errors=True)
