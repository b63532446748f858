"""Threads that compute an image each: on a CPU several small networks side by side are faster than one on all cores."""

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from rayinfer.engine.worker.cores import Cores

Compute = Callable[[torch.Tensor], torch.Tensor]
Item = TypeVar("Item")
Result = TypeVar("Result")


class ImageThreads:
    """As many threads as torch has, each with a team of its own that is itself alone, and on a core of its own."""

    def __init__(self, num_threads: int, cores: Cores | None = None) -> None:
        self._cores = cores
        self._free_cores: queue.SimpleQueue[int] = queue.SimpleQueue()
        for core in cores or ():
            self._free_cores.put(core)
        self._pool = ThreadPoolExecutor(num_threads, "images", initializer=self._begin)
        all_there = threading.Barrier(num_threads + 1)
        for _ in range(num_threads):  # a thread starts with work that no other one is free for
            self._pool.submit(all_there.wait)
        all_there.wait()
        torch.set_num_threads(num_threads)  # of threads that are started later

    def run(self, compute: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Yield the result of each item, in order."""
        return self._pool.map(torch.inference_mode()(compute), items)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._cores is not None:
            self._cores.release()

    def _begin(self) -> None:
        torch.set_num_threads(1)
        with contextlib.suppress(queue.Empty):  # no cores, or fewer than threads
            os.sched_setaffinity(0, {self._free_cores.get_nowait()})


def image_threads(compute: Compute, image: torch.Tensor, cores: Cores | None = None) -> ImageThreads | None:
    """Start threads where there are cores for them, and an image's bits do not depend on how many compute it."""
    num_threads = torch.get_num_threads()
    if num_threads < 2:
        return None
    with torch.inference_mode():
        expected = compute(image)
    threads = ImageThreads(num_threads, cores)
    (alone,) = threads.run(compute, [image])
    if torch.equal(expected, alone):
        return threads
    threads.close()
    return None
