"""Ranks as threads of one process, which exchange messages in memory."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from rayinfer.tensor_parallel import TensorGroup

TIMEOUT_S = 60
Result = TypeVar("Result")


class Table:
    """Shared table for an all-gather between ranks that are threads."""

    def __init__(self, size: int) -> None:
        self._places: list[Any] = [None] * size
        self.barrier = threading.Barrier(size)

    def exchange(self, rank: int, thing: Any) -> list[Any]:
        """Contribute an object and return those of all ranks."""
        self._places[rank] = thing
        self.barrier.wait(TIMEOUT_S)
        things = list(self._places)
        self.barrier.wait(TIMEOUT_S)
        return things


class ThreadGroup:
    """A TensorGroup of threads."""

    def __init__(self, rank: int, size: int, table: Table) -> None:
        self.rank, self.size, self._table = rank, size, table

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """See TensorGroup."""
        first, *others = self._table.exchange(self.rank, x.clone())
        return sum(others, first)

    def all_gather(self, x: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        """See TensorGroup."""
        parts = self._table.exchange(self.rank, x.clone())
        assert [part.shape[-1] for part in parts] == list(widths)
        return torch.cat(parts, -1)

    def all_to_all(self, rows: torch.Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]) -> torch.Tensor:
        """See TensorGroup."""
        sent = self._table.exchange(self.rank, rows.clone().split(list(send_counts)))
        received = [parts[self.rank] for parts in sent]
        assert [len(part) for part in received] == list(receive_counts)
        return torch.cat(received)


def run_threads(size: int, run: Callable[[TensorGroup], Result]) -> list[Result]:
    """Run the same on `size` ranks at once; returns what each of them returned."""
    table = Table(size)

    def run_one(rank: int) -> Result:
        try:
            with torch.inference_mode():  # a thread has its own
                return run(ThreadGroup(rank, size, table))
        except BaseException:
            table.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run_one, range(size)))
