"""Time that a rank spends in collectives."""

import time
from collections.abc import Sequence

import torch

from rayinfer.tensor_parallel import TensorGroup


class TimedGroup:
    """A TensorGroup that measures another one; on a GPU only what the host waits for is seen."""

    def __init__(self, group: TensorGroup) -> None:
        self._group = group
        self.rank = group.rank
        self.size = group.size
        self.seconds = 0.0

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """See TensorGroup."""
        started = time.perf_counter()
        total = self._group.all_reduce(x)
        self.seconds += time.perf_counter() - started
        return total

    def all_gather(self, x: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        """See TensorGroup."""
        started = time.perf_counter()
        gathered = self._group.all_gather(x, widths)
        self.seconds += time.perf_counter() - started
        return gathered

    def all_to_all(self, rows: torch.Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]) -> torch.Tensor:
        """See TensorGroup."""
        started = time.perf_counter()
        received = self._group.all_to_all(rows, send_counts, receive_counts)
        self.seconds += time.perf_counter() - started
        return received
