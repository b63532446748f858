"""OpenMP teams of threads, and where their threads may run."""

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any


def affinities_of_the_team(num_threads: int) -> list[set[int]]:
    """Return where each thread of the calling thread's team may run, asked by the threads themselves."""
    gomp, found = ctypes.CDLL("libgomp.so.1"), {}

    def ask(_: object) -> None:
        found[gomp.omp_get_thread_num()] = os.sched_getaffinity(0)

    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ask)
    gomp.GOMP_parallel(function, None, num_threads, 0)
    return [found[thread] for thread in range(num_threads)]


def in_a_thread(work: Callable[[], Any]) -> Any:
    """Call it in a thread of its own, whose OpenMP team is new."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]
