"""Threads that compute an image each: on a CPU several small networks side by side are faster than one on all cores."""

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Compute = Callable[[torch.Tensor], torch.Tensor]
Item = TypeVar("Item")


class ImageThreads:
    """As many threads as torch has, each with a team of its own that is itself alone."""

    def __init__(self, num_threads: int) -> None:
        self._pool = ThreadPoolExecutor(num_threads, "images", initializer=functools.partial(torch.set_num_threads, 1))
        all_there = threading.Barrier(num_threads + 1)
        for _ in range(num_threads):  # a thread starts with work that no other one is free for
            self._pool.submit(all_there.wait)
        all_there.wait()
        torch.set_num_threads(num_threads)  # of threads that are started later

    def run(self, compute: Callable[[Item], torch.Tensor], items: Sequence[Item]) -> Iterator[torch.Tensor]:
        """Yield the result of each item, in order."""
        return self._pool.map(torch.inference_mode()(compute), items)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def image_threads(compute: Compute, image: torch.Tensor) -> ImageThreads | None:
    """Start threads where there are cores for them, and an image's bits do not depend on how many compute it."""
    num_threads = torch.get_num_threads()
    if num_threads < 2:
        return None
    with torch.inference_mode():
        expected = compute(image)
    threads = ImageThreads(num_threads)
    (alone,) = threads.run(compute, [image])
    if torch.equal(expected, alone):
        return threads
    threads.close()
    return None
