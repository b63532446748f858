"""Prefaulting of an engine's pool: its pages are taken from the system before blocks are written.

A pool is reserved virtually. The first write to each of its huge pages takes the page from the system, which fills it
with zeros; the host of a virtual machine may have to find its memory first. That was measured to take 0.2 to 4 ms a
page, 2 to 12 % of the time of steps that write their blocks first.
"""

import ctypes
import logging
import math
import mmap
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from rayinfer.kv_cache.thread_priority import lower_priority

_logger = logging.getLogger(__name__)

THREAD_NAME = "kv-pool-pages"
_MADV_POPULATE_WRITE = 23  # of Linux 5.14: as if each page were written to, but its contents stay
_BYTES_AT_ONCE = 4 << 20  # of one tensor: some milliseconds, for which a step or the end may have to wait
_IDLE_S = 0.1  # without a step, until the engine counts as idle

BlockViews = Sequence[NDArray[np.uint8]]  # each tensor of the pool: [num_blocks, bytes of its part of a block]


class PoolPages:
    """A thread that takes the memory of a pool, in the order in which blocks are allocated, while no step is computed.

    Beside a step it would hold up the cores' other threads for longer than the step's own writes take. It must be ended
    before the pool is freed.
    """

    def __init__(
        self,
        views: Callable[[], BlockViews],
        num_blocks: int,
        has_room: Callable[[int], bool] = lambda num_bytes: False,
    ) -> None:
        """Take `num_blocks`, then others as long as `has_room` for the bytes that are taken so far."""
        self._views = views
        self._num_blocks = num_blocks
        self._has_room = has_room
        self._idle_at = 0.0  # on the monotonic clock
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._thread.start()

    def begin_step(self) -> None:
        """Take nothing while a step is computed."""
        self._idle_at = math.inf

    def end_step(self) -> None:
        """Go on a moment later, unless the next step begins."""
        self._idle_at = time.monotonic() + _IDLE_S

    def wait(self, timeout_s: float) -> bool:
        """Wait until all is taken, or the thread has ended otherwise; returns whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def end(self) -> None:
        """End the thread, wherever it is."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        lower_priority()
        madvise = _find_madvise()
        if madvise is None:
            return
        views = self._views()
        num_blocks, block_bytes = min(map(len, views), default=0), sum(view.strides[0] for view in views)
        at_once = max(1, _BYTES_AT_ONCE // max([1, *(view.strides[0] for view in views)]))
        for first, end in _pieces(min(self._num_blocks, num_blocks), num_blocks, at_once):
            if first >= self._num_blocks and not self._has_room(first * block_bytes):
                return
            for view in views:
                if not self._waits_until_idle():
                    return
                if error := _populate(madvise, view[first:end]):
                    _logger.debug("the pool's memory is taken as it is used: error %d of madvise", error)
                    return

    def _waits_until_idle(self) -> bool:
        """Wait for it; returns whether the thread goes on then."""
        while not self._ended.is_set():
            left = self._idle_at - time.monotonic()
            if left <= 0:
                return True
            self._ended.wait(min(left, _IDLE_S))
        return False


def _pieces(middle: int, end: int, most: int) -> Iterator[tuple[int, int]]:
    """Cut blocks into ranges, of which none has blocks before and behind `middle`."""
    for begin, last in ((0, middle), (middle, end)):
        for first in range(begin, last, most):
            yield first, min(last, first + most)


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
