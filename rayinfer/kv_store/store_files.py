"""Files of stores: their folders and names, listing, and deletion of those that no engine uses."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rayinfer.errors import ConfigError
from rayinfer.kv_store.file_format import FileHeader, FileLayout
from rayinfer.kv_store.file_locks import LOCK_SUFFIX, delete_unused, read_header, try_lock
from rayinfer.kv_store.slot_file import SlotFile

SUFFIX = ".kv"
_OTHERS = 0o077


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreFile:
    """One store's file in a folder."""

    path: str
    model: str
    num_bytes: int  # of memory or disk space that it takes
    max_bytes: int
    last_used_s: float  # since 1970
    is_in_use: bool  # by an engine


def open_slot_file(folder: Path, *, identity: bytes, label: str, block_bytes: int, max_bytes: int) -> SlotFile:
    """Open or make the file of an identity in a folder of this user's own; raises ConfigError.

    Files of other identities that no engine uses keep together as many bytes as this one may have, the most recently
    used ones.
    """
    layout = FileLayout.within(block_bytes, max_bytes)
    if not layout.num_slots:
        raise ConfigError(f"{max_bytes} bytes of a KV store hold no block: one takes {layout.slot_bytes} bytes")
    path = folder / f"{identity.hex()[:32]}{SUFFIX}"
    try:
        _make_own_folder(folder)
        shrink_unused(folder, max_bytes, keep=path)
        return SlotFile(path, FileHeader(identity=identity, layout=layout, label=label))
    except OSError as error:
        raise ConfigError(f"the KV store in {folder} cannot be opened: {error}") from None


def list_stores(folder: Path) -> list[StoreFile]:
    """List a folder's stores, the least recently used first."""
    stores = []
    for path in folder.glob(f"*{SUFFIX}"):
        with suppress(OSError):  # deleted meanwhile
            stores.append(_describe(path))
    return sorted(stores, key=lambda store: (store.last_used_s, store.path))


def shrink_unused(folder: Path, max_bytes: int, *, keep: Path | None = None) -> list[StoreFile]:
    """Delete the least recently used files that no engine uses, until the rest of those has at most `max_bytes`."""
    unused = [store for store in list_stores(folder) if not store.is_in_use and Path(store.path) != keep]
    total, deleted = sum(store.num_bytes for store in unused), []
    for store in unused:
        if total <= max_bytes:
            break
        if delete_unused(Path(store.path)):
            total -= store.num_bytes
            deleted.append(store)
    for lock in folder.glob(f"*{LOCK_SUFFIX}"):  # of files that were deleted otherwise
        if not lock.with_suffix(SUFFIX).exists():
            lock.unlink(missing_ok=True)
    return deleted


def _describe(path: Path) -> StoreFile:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status, header = os.fstat(descriptor), read_header(descriptor)
        return StoreFile(
            path=str(path),
            model="(damaged)" if header is None else header.label,
            num_bytes=512 * status.st_blocks,
            max_bytes=status.st_size,
            last_used_s=status.st_mtime,
            is_in_use=not try_lock(descriptor, exclusive=True),
        )
    finally:
        os.close(descriptor)


def _make_own_folder(folder: Path) -> None:
    """Make a folder that only this user can enter; raises PermissionError for one of another's."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    if status.st_mode & _OTHERS:
        folder.chmod(0o700)
