"""The store of one model's blocks: shared memory, and behind it a file on the disk."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rayinfer.kv_store.file_locks import delete_unused
from rayinfer.kv_store.slot_file import Pieces, SlotFile
from rayinfer.kv_store.write_behind import WriteBehind

_logger = logging.getLogger(__name__)

_FLUSH_S = 2.0

Tier = Literal["memory", "disk"]


@dataclass(frozen=True, slots=True)
class BlockName:
    """Name of a block: what it is found by, and what its hit is verified by."""

    key: bytes  # its chain hash
    content: bytes  # digest of its salt and of all tokens up to its end


class KVBlockStore:
    """Blocks of one model, as its engines on this machine have computed them."""

    def __init__(self, memory: SlotFile, disk: SlotFile | None = None, *, persists: bool = True) -> None:
        self._memory = memory
        self._persists = persists
        self._disk = disk
        self._behind = None if disk is None else WriteBehind(memory, disk)
        self._has_failed = False

    def may_have(self, key: bytes) -> bool:
        """Return whether a block is there, which its load verifies."""
        return self._memory.find(key) is not None or (self._disk is not None and self._disk.find(key) is not None)

    def load(self, name: BlockName, pieces: Pieces, parent: bytes | None, stamp: int) -> Tier | None:
        """Copy a block into `pieces`, from memory or else from the disk; None if it is not there as a whole."""
        if self._memory.read(name.key, name.content, pieces, stamp):
            return "memory"
        if self._disk is None or not self._disk.read(name.key, name.content, pieces, stamp):
            return None
        self._write_to_memory(name, pieces, parent, stamp)
        return "disk"

    def note_use(self, name: BlockName, parent: bytes | None, stamp: int) -> bool:
        """Note a use of a block, which goes to the disk if it is not there; returns whether memory has it."""
        if not self._memory.note_use(name.key, name.content, stamp):
            return False
        if self._disk is not None and not self._disk.note_use(name.key, name.content, stamp):
            self._write_behind(name, parent, stamp)
        return True

    def keep(self, name: BlockName, pieces: Pieces, parent: bytes | None, stamp: int) -> bool:
        """Keep a block in memory, and later on the disk; returns whether memory has it."""
        if not self._write_to_memory(name, pieces, parent, stamp):
            return False
        self._write_behind(name, parent, stamp)
        return True

    @property
    def name(self) -> str:
        """Name of the store, the same for all engines that share it."""
        return self._memory.name

    @property
    def most_blocks(self) -> int:
        """Blocks that fit into both tiers."""
        return self._memory.layout.num_slots + (0 if self._disk is None else self._disk.layout.num_slots)

    @property
    def num_bytes(self) -> Sequence[int]:
        """Bytes of the blocks in memory and on the disk; takes time in proportion to the slots."""
        return self._memory.num_bytes, 0 if self._disk is None else self._disk.num_bytes

    @property
    def num_written(self) -> int:
        """Blocks that this process has written to memory."""
        return self._memory.num_written

    @property
    def num_evicted(self) -> int:
        """Blocks in both tiers that made room for blocks of this process."""
        return self._memory.num_evicted + (0 if self._disk is None else self._disk.num_evicted)

    @property
    def num_damaged(self) -> int:
        """Blocks and files that were found damaged."""
        return self._memory.num_damaged + (0 if self._disk is None else self._disk.num_damaged)

    @property
    def num_dropped(self) -> int:
        """Blocks in memory that could not be written to the disk in time, or at all."""
        return 0 if self._behind is None else self._behind.num_dropped

    def flush(self, timeout_s: float) -> bool:
        """Wait until the disk has what it is to get; returns whether it has."""
        return self._behind is None or self._behind.flush(timeout_s)

    def close(self, *, will_return: bool = False) -> None:
        """Close the files; what is not on the disk within two seconds is not written there.

        Shared memory that no other process uses is freed, unless the store persists or `will_return` to this process.
        """
        if self._behind is not None:
            self._behind.flush(_FLUSH_S)
            self._behind.close()
        self._memory.close()
        if not (self._persists or will_return):
            delete_unused(self._memory.path)
        if self._disk is not None:
            self._disk.close()

    def _write_behind(self, name: BlockName, parent: bytes | None, stamp: int) -> None:
        if self._behind is not None:
            self._behind.add(name.key, name.content, parent, stamp)

    def _write_to_memory(self, name: BlockName, pieces: Pieces, parent: bytes | None, stamp: int) -> bool:
        try:
            return self._memory.write(name.key, name.content, pieces, parent, stamp)
        except OSError as error:
            if not self._has_failed:
                _logger.warning("a KV block could not be written to shared memory, as others after it maybe: %s", error)
            self._has_failed = True
            return False
