"""The machine's block store, as the threads of transfers use it: by files that they have opened themselves."""

import threading
import time
from collections.abc import Sequence

from rayinfer.kv_store.slot_file import SlotFile
from rayinfer.kv_store.store import BlockName

_POLL_S = 0.002  # for a block that another thread or process is about to write


class StoredBlocks:
    """Whole blocks of the store; safe for several threads.

    Locks of files exclude open files, not threads: so these are not the engine's own.
    """

    def __init__(self, identity: bytes, memory: SlotFile, disk: SlotFile | None = None) -> None:
        self.identity = identity  # of the blocks: what their bytes depend on besides salts and tokens
        self._memory = memory
        self._disk = disk
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def store_name(self) -> str:
        """Name of the store, the same for all engines that share it."""
        return self._memory.name

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self._memory.layout.block_bytes

    def read(self, name: BlockName, block: memoryview) -> bool:
        """Read a block, verified; returns whether it is there."""
        with self._lock:
            if self._is_closed:
                return False
            stamp = time.time_ns()
            if self._memory.read(name.key, name.content, [block], stamp):
                return True
            return self._disk is not None and self._disk.read(name.key, name.content, [block], stamp)

    def read_within(self, name: BlockName, block: memoryview, deadline: float) -> bool:
        """Read a block, waiting until the deadline for one that is not there yet."""
        while not self.read(name, block):
            if self._is_closed or time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def write(self, name: BlockName, block: memoryview, parent: bytes | None) -> bool:
        """Write a block to memory behind its parent; returns whether it is there. Raises OSError."""
        with self._lock:
            return not self._is_closed and self._memory.write(name.key, name.content, [block], parent, time.time_ns())

    def num_present(self, names: Sequence[BlockName]) -> int:
        """Count the first blocks of a chain that memory or disk have, and note their use in memory."""
        for number, name in enumerate(names):
            if not self._has(name):
                return number
        return len(names)

    def wait_for(self, names: Sequence[BlockName], deadline: float, stall_s: float) -> int:
        """Wait until memory or disk have the blocks of a chain; returns how many of the first ones they have.

        Ends also once no further one has come for `stall_s`.
        """
        num_present, latest = self.num_present(names), time.monotonic()
        while num_present < len(names) and not self._is_closed:
            now = time.monotonic()
            if now >= min(deadline, latest + stall_s):
                break
            time.sleep(_POLL_S)
            if num_more := self.num_present(names[num_present:]):
                num_present, latest = num_present + num_more, now
        return num_present

    def close(self) -> None:
        """Close the files, which stay."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._memory.close()
            if self._disk is not None:
                self._disk.close()

    def _has(self, name: BlockName) -> bool:
        with self._lock:
            if self._is_closed:
                return False
            stamp = time.time_ns()
            return self._memory.note_use(name.key, name.content, stamp) or (
                self._disk is not None and self._disk.note_use(name.key, name.content, stamp)
            )
