"""Writing of blocks to the disk, behind the memory that has them already."""

import logging
import threading
from collections import deque

from rayinfer.kv_cache.thread_priority import lower_priority
from rayinfer.kv_store.slot_file import SlotFile

_logger = logging.getLogger(__name__)

_LONGEST_QUEUE = 4096  # blocks


class WriteBehind:
    """A thread that copies blocks from one file to another; what does not fit its queue is dropped."""

    def __init__(self, source: SlotFile, target: SlotFile) -> None:
        self._source, self._target = source, target
        self._queue: deque[tuple[bytes, bytes, bytes | None, int]] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._is_writing = False
        self.num_dropped = 0
        self._thread = threading.Thread(target=self._run, name="kv-store-disk", daemon=True)
        self._thread.start()

    def add(self, key: bytes, content: bytes, parent: bytes | None, stamp: int) -> None:
        """Queue a block."""
        with self._changed:
            if len(self._queue) >= _LONGEST_QUEUE:
                self.num_dropped += 1
                return
            self._queue.append((key, content, parent, stamp))
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is written; returns whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._is_writing, timeout_s)

    def close(self) -> None:
        """End the thread after its current block."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        lower_priority()
        piece = memoryview(bytearray(self._source.layout.block_bytes))
        has_failed = False
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queue or self._is_closed)
                if self._is_closed:
                    return
                key, content, parent, stamp = self._queue.popleft()
                self._is_writing = True
            try:
                is_written = self._copy(key, content, piece, parent, stamp)
            except OSError as error:
                is_written = False
                if not has_failed:
                    _logger.warning("a KV block could not be written to the disk, as others after it maybe: %s", error)
                has_failed = True
            self.num_dropped += not is_written

    def _copy(self, key: bytes, content: bytes, piece: memoryview, parent: bytes | None, stamp: int) -> bool:
        if self._target.note_use(key, content, stamp):
            return True
        digest = self._source.read_with_digest(key, content, [piece], stamp)
        return digest is not None and self._target.write(key, content, [piece], parent, stamp, digest)
