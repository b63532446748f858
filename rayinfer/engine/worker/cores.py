"""Threads of an engine and the cores they are pinned to.

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
from rayinfer.config import EngineConfig, cache_folder
from rayinfer.engine.worker.cpu_kernels import use_cpu_kernels

CAN_PIN = hasattr(os, "sched_setaffinity")


def usable_cores() -> list[int]:
    """Return the numbers of the cores that this thread may use."""
    return sorted(os.sched_getaffinity(0)) if CAN_PIN else list(range(os.cpu_count() or 1))


def fill_machine(num_threads: int, num_engines: int = 1) -> bool:
    """Return whether so many threads of each engine leave no core free, so that pinning helps.

    Where cores are free, the system moves threads to them, and pinning would do harm: another program on the machine,
    maybe in a container, might be pinned to the same cores.
    """
    return num_threads > 1 and num_threads * num_engines >= len(usable_cores())


def set_threads(config: EngineConfig, device: torch.device) -> None:
    """Set the number of threads by the settings, and load the device's kernels."""
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    elif config.num_ranks > 1 and device.type == "cpu":
        torch.set_num_threads(max(1, len(usable_cores()) // config.num_ranks))
    if device.type == "cpu":
        use_cpu_kernels(config.kernels)
    else:
        rayinfer_kernels.configure_gpu()


def cores_of(config: EngineConfig, device: torch.device) -> "Cores | None":
    """Reserve cores for an engine's threads where the settings, or a machine without free cores, ask for it."""
    num_threads = torch.get_num_threads()
    is_pinned = fill_machine(num_threads, config.num_ranks) if config.pin_threads is None else config.pin_threads
    return Cores(num_threads, cache_folder() / "cores") if is_pinned and device.type == "cpu" else None


def pinned(cores: "Cores | None") -> contextlib.AbstractContextManager[None]:
    """Pin the calling thread and its team while they compute, if there are cores for them."""
    return contextlib.nullcontext() if cores is None else cores.hold()


class Cores:
    """Cores for the threads of one engine, one for each; none if there are not enough.

    An engine that uses only some of the machine's cores holds a file lock on each of them, in a folder shared by all
    engines, so that no two engines choose the same. The system releases the locks when a process dies.
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
        """Iterate over their numbers, in the order of the threads."""
        return iter(self._cores)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Pin the calling thread's team, and the thread itself until it leaves, so that its later threads are not."""
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
        """Release the cores, and unpin the calling thread's team."""
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
