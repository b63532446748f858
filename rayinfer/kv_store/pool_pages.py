"""Memory of an engine's pool, taken from the system before blocks are loaded into it.

A pool is reserved virtually. The first write to each of its huge pages takes the page from the system, which fills it
with zeros: on virtual machines that was measured to take ten times as long as the copy of the loaded blocks.
"""

import ctypes
import logging
import mmap
import sys
import threading
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rayinfer.kv_store.thread_priority import lower_priority

_logger = logging.getLogger(__name__)

THREAD_NAME = "kv-store-pages"
_MADV_POPULATE_WRITE = 23  # of Linux 5.14: as if each page were written to, but its contents stay
_BLOCKS_AT_ONCE = 128  # in one tensor: some milliseconds, so that the thread ends soon

BlockViews = Sequence[NDArray[np.uint8]]  # each tensor of the pool: [num_blocks, bytes of its part of a block]


class PoolPages:
    """A thread of low priority that takes the memory of a pool's first blocks, which are allocated first.

    It must be ended before the pool is freed.
    """

    def __init__(self, views: Callable[[], BlockViews], num_blocks: int) -> None:
        self._views = views
        self._num_blocks = num_blocks
        self._is_ended = False
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait until all is taken, or the thread has ended otherwise; returns whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def end(self) -> None:
        """End the thread, wherever it is."""
        self._is_ended = True
        self._thread.join()

    def _run(self) -> None:
        lower_priority()
        madvise = _find_madvise()
        if madvise is None:
            return
        views = self._views()
        num_blocks = min(self._num_blocks, *map(len, views))
        for first in range(0, num_blocks, _BLOCKS_AT_ONCE):
            for view in views:
                if self._is_ended:
                    return
                if error := _populate(madvise, view[first : min(num_blocks, first + _BLOCKS_AT_ONCE)]):
                    _logger.debug("the pool's memory is taken as it is used: error %d of madvise", error)
                    return


def _find_madvise() -> Callable[..., int] | None:
    if sys.platform != "linux":
        return None
    madvise = ctypes.CDLL(None, use_errno=True).madvise  # a call lets other threads run
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return madvise


def _populate(madvise: Callable[..., int], blocks: NDArray[np.uint8]) -> int:
    """Take the memory of the pages in which these blocks lie; returns the system's error, or 0."""
    begin = blocks.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    size = blocks.ctypes.data + blocks.nbytes - begin
    return ctypes.get_errno() if madvise(begin, size, _MADV_POPULATE_WRITE) else 0
