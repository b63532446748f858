"""One file of KV blocks that processes share: in memory where the file system is, or on a disk.

Nothing in it is trusted. A block is read first and then held against its digest, so what a killed writer left, what is
being overwritten, and what a disk has spoiled are misses. Readers take no lock. Writers take one that the system
releases at their death, and a record is cleared before its slot is written and filled in afterwards.
"""

import fcntl
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import xxhash

from rayinfer.kv_store.contents import CONTENT_BYTES
from rayinfer.kv_store.file_format import (
    DIGEST_BYTES,
    KEY_BYTES,
    PAGE_BYTES,
    STAMP_BYTES,
    FileHeader,
)
from rayinfer.kv_store.file_locks import LOCK_SUFFIX, open_locked, try_lock

Pieces = Sequence[memoryview]  # a block, layer by layer, as it lies in the engine's pool

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # of this start of the machine, whatever container asks
_LOCK_TIMEOUT_S = 0.2  # a writer needs a millisecond; one that is stopped must not stop the others
_LOCK_RETRY_S = 0.001
_LATEST_NS = 3600 * 10**9  # from now: clocks may be set


class SlotFile:
    """Blocks in slots by their keys, the least recently used one evicted first.

    A block is never more recently used than its parent, so a prefix is evicted from its end.
    """

    def __init__(self, path: Path, wanted: FileHeader, *, timeout_s: float = 5.0) -> None:
        self.path = path
        locked = open_locked(path, wanted, timeout_s)
        self.layout = layout = locked.header.layout
        self._descriptor = locked.descriptor
        self._writer_lock = os.open(path.with_suffix(LOCK_SUFFIX), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        table = mmap.mmap(self._descriptor, layout.data_offset)
        offset, count = PAGE_BYTES, layout.num_slots
        self._keys = np.frombuffer(table, np.uint64, 2 * count, offset).reshape(count, 2)
        offset += KEY_BYTES * count
        self._stamps = np.frombuffer(table, np.uint64, count, offset)
        offset += STAMP_BYTES * count
        self._contents = np.frombuffer(table, np.uint8, CONTENT_BYTES * count, offset).reshape(count, -1)
        offset += CONTENT_BYTES * count
        self._digests = np.frombuffer(table, np.uint8, DIGEST_BYTES * count, offset).reshape(count, -1)
        self._stamps[self._stamps > time.time_ns() + _LATEST_NS] = 0  # of a spoiled table: it would never be evicted
        self._known_slots: dict[bytes, int] = {}  # where keys were last; another process may have moved them
        self.num_written = 0
        self.num_evicted = 0
        self.num_damaged = int(locked.was_damaged)  # files and blocks

    @property
    def num_bytes(self) -> int:
        """Bytes of the blocks that it holds; takes time in proportion to the slots."""
        return int(np.count_nonzero(self._keys[:, 0])) * self.layout.block_bytes

    @property
    def name(self) -> str:
        """Name of the file, the same for its processes and no other file's on any machine that runs."""
        status = os.fstat(self._descriptor)
        return f"{_BOOT_ID.read_text().strip()}/{status.st_dev}/{status.st_ino}"

    def find(self, key: bytes) -> int | None:
        """Return the slot of a key; what it holds is verified when it is read."""
        low, high = _as_numbers(key)
        slot = self._known_slots.get(key)
        if slot is not None and self._keys[slot, 0] == low and self._keys[slot, 1] == high:
            return slot
        for slot in np.flatnonzero(self._keys[:, 0] == low).tolist():
            if self._keys[slot, 1] == high:
                if len(self._known_slots) > 2 * self.layout.num_slots:
                    self._known_slots.clear()
                self._known_slots[key] = slot
                return slot
        return None

    def read(self, key: bytes, content: bytes, pieces: Pieces, stamp: int) -> bool:
        """Read a block of this content into `pieces`, used at `stamp`; False if there is none, or it is damaged."""
        return self.read_with_digest(key, content, pieces, stamp) is not None

    def read_with_digest(self, key: bytes, content: bytes, pieces: Pieces, stamp: int) -> bytes | None:
        """Read a block as `read` does; returns its digest, with which it can be written to another file."""
        slot = self.find(key)
        if slot is None or not self._has_content(slot, content):
            return None
        digest = self._read_verified(slot, key, content, pieces)
        if digest is None:
            with self._writing() as is_alone:
                # Without other writers: it may have been replaced meanwhile, or is damaged.
                if not is_alone or self.find(key) != slot:
                    return None
                digest = self._read_verified(slot, key, content, pieces)
                if digest is None:
                    self._clear(slot)
                    self.num_damaged += 1
                    return None
        self._stamps[slot] = stamp
        return digest

    def write(
        self,
        key: bytes,
        content: bytes,
        pieces: Pieces,
        parent: bytes | None,
        stamp: int,
        digest: bytes | None = None,  # of a block that was read from another file
    ) -> bool:
        """Write a block behind its parent, or note that one that is there is in use; returns whether it is there.

        It is not without its parent, and if another writer does not give way in time. Raises OSError when the file
        system is full or fails.
        """
        digest = digest or _digest(key, content, pieces)
        with self._writing() as is_alone:
            if not is_alone:
                return False
            slot = self.find(key)
            if slot is not None and self._has_content(slot, content):
                self._stamps[slot] = stamp
                return True
            if parent is not None:
                parent_slot = self.find(parent)
                if parent_slot is None:
                    return False  # it could not be hit
                stamp = max(1, min(stamp, int(self._stamps[parent_slot]) - 1))
            if slot is None:  # else it has other content
                slot = int(self._stamps.argmin())
                self.num_evicted += bool(self._keys[slot, 0])
            self._clear(slot)
            self._write_slot(slot, pieces)
            self._contents[slot] = np.frombuffer(content, np.uint8)
            self._digests[slot] = np.frombuffer(digest, np.uint8)
            self._stamps[slot] = stamp
            low, high = _as_numbers(key)
            self._keys[slot, 1] = high
            self._keys[slot, 0] = low
            self._known_slots[key] = slot
            self.num_written += 1
            return True

    def note_use(self, key: bytes, content: bytes, stamp: int) -> bool:
        """Note a use of a block at `stamp`; returns whether it is there."""
        slot = self.find(key)
        if slot is None or not self._has_content(slot, content):
            return False
        self._stamps[slot] = stamp
        return True

    def close(self) -> None:
        """Close the file, which stays."""
        del self._keys, self._stamps, self._contents, self._digests
        os.close(self._writer_lock)
        os.close(self._descriptor)

    @contextmanager
    def _writing(self) -> Iterator[bool]:
        """Exclude other writers; yields whether that was possible."""
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while not (is_alone := try_lock(self._writer_lock, exclusive=True)) and time.monotonic() < deadline:
            time.sleep(_LOCK_RETRY_S)
        try:
            yield is_alone
        finally:
            if is_alone:
                fcntl.flock(self._writer_lock, fcntl.LOCK_UN)

    def _has_content(self, slot: int, content: bytes) -> bool:
        return bool(self._contents[slot].tobytes() == content)

    def _read_verified(self, slot: int, key: bytes, content: bytes, pieces: Pieces) -> bytes | None:
        digest = self._digests[slot].tobytes()
        num_read = os.preadv(self._descriptor, pieces, self.layout.slot_offset(slot))
        return digest if num_read == self.layout.block_bytes and _digest(key, content, pieces) == digest else None

    def _write_slot(self, slot: int, pieces: Pieces) -> None:
        num_written = os.pwritev(self._descriptor, pieces, self.layout.slot_offset(slot))
        if num_written != self.layout.block_bytes:
            raise OSError(f"{num_written} of {self.layout.block_bytes} bytes of a KV block could be written")

    def _clear(self, slot: int) -> None:
        self._keys[slot] = 0
        self._stamps[slot] = 0
        self._digests[slot] = 0


def _as_numbers(key: bytes) -> tuple[np.uint64, np.uint64]:
    low, high = np.frombuffer(key, np.uint64)
    return low or np.uint64(1), high  # a slot whose first number is zero is empty


def _digest(key: bytes, content: bytes, pieces: Pieces) -> bytes:
    digest = xxhash.xxh3_128(key + content)
    for piece in pieces:
        digest.update(piece)
    return digest.digest()
