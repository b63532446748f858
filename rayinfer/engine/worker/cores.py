"""The cores that an engine's threads keep to.

Threads of a step meet hundreds of times. Where another program keeps one core busy, the system may leave two of them on
another, where one spins through the time slice that the other needs: beside one busy process of their own
priority, two pinned threads were measured to be 1.7 times as fast as two free ones.
"""

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import filelock
import torch

import rayinfer_kernels

CAN_PIN = hasattr(os, "sched_setaffinity")


def usable_cores() -> list[int]:
    """The numbers of the cores that this thread may use."""
    return sorted(os.sched_getaffinity(0)) if CAN_PIN else list(range(os.cpu_count() or 1))


def fill_machine(num_threads: int, num_engines: int = 1) -> bool:
    """Whether so many threads of each engine leave no core free, so that it matters which one each is on.

    Where cores are left, the system moves threads to them. Pinning would do harm there: another program on the machine,
    maybe in a container, might be pinned to the same cores.
    """
    return num_threads > 1 and num_threads * num_engines >= len(usable_cores())


class Cores:
    """Cores for the threads of one engine, a core for each; nothing where there are not enough.

    An engine that uses only some of the machine's holds a lock on each of its own, in files of a folder that all of
    them know, so that no two engines choose the same. The system gives them back when a process dies.
    """

    def __init__(self, num_threads: int, folder: Path) -> None:
        usable = usable_cores()
        self._locks: list[filelock.FileLock] = []
        self._thread = threading.local()  # whether its team is pinned; a thread that takes an ended one's number is new
        self._cores: Sequence[int] = ()
        if not CAN_PIN:
            return
        if num_threads == len(usable):
            self._cores = usable
        else:
            self._cores = self._take(num_threads, usable, folder)

    def __iter__(self) -> Iterator[int]:
        """Their numbers, in the order of the threads."""
        return iter(self._cores)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Pin the team of the calling thread, and itself until it leaves: what it starts later shall run anywhere."""
        if len(self._cores) != torch.get_num_threads():  # none, or the team was changed
            self._thread.has_pinned_team = False
            yield
            return
        before = os.sched_getaffinity(0)
        if not getattr(self._thread, "has_pinned_team", False):
            rayinfer_kernels.pin_threads(self._cores)
            self._thread.has_pinned_team = True
        os.sched_setaffinity(0, {self._cores[0]})
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    def release(self) -> None:
        """Let others have them, and the calling thread's team run anywhere."""
        if self._cores:
            rayinfer_kernels.pin_threads(None)
        self._cores = ()
        for lock in self._locks:
            lock.release()
        self._locks.clear()

    def _take(self, count: int, usable: Sequence[int], folder: Path) -> Sequence[int]:
        taken: list[int] = []
        with contextlib.suppress(OSError, NotImplementedError):  # no files, or no locks on them: then nothing is pinned
            folder.mkdir(parents=True, exist_ok=True)
            for core in usable:
                lock = filelock.FileLock(folder / f"core-{core}.lock", thread_local=False)
                with contextlib.suppress(filelock.Timeout):
                    lock.acquire(blocking=False)
                    self._locks.append(lock)
                    taken.append(core)
                if len(taken) == count:
                    return taken
        for lock in self._locks:
            lock.release()
        self._locks.clear()
        return ()
