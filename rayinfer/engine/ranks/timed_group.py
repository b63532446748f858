"""Time that a rank spends in collectives."""

import time
from collections.abc import Sequence

import torch

from rayinfer.tensor_parallel import TensorGroup


class TimedGroup:
    """A TensorGroup that measures another one; on a GPU only the host's waits count."""

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


class StageTimes:
    """Seconds that each stage has computed, and seconds in which at least one step was in flight."""

    def __init__(self, num_stages: int) -> None:
        self.busy_s = [0.0] * num_stages
        self.loaded_s = 0.0
        self._loaded_since: float | None = None

    def start(self, now: float) -> None:
        """Record the start of a step."""
        if self._loaded_since is None:
            self._loaded_since = now

    def stop(self, now: float) -> None:
        """Record that no step is in flight any more."""
        if self._loaded_since is not None:
            self.loaded_s += now - self._loaded_since
            self._loaded_since = None

    def add(self, stage: int, seconds: float) -> None:
        """Record the time of a stage in a step."""
        self.busy_s[stage] += seconds

    def idle_shares(self, now: float) -> list[float]:
        """Return the share of the loaded time so far in which each stage waited for the others."""
        loaded_s = self.loaded_s
        if self._loaded_since is not None:
            loaded_s += now - self._loaded_since
        return [max(0.0, 1 - busy_s / loaded_s) if loaded_s else 0.0 for busy_s in self.busy_s]
