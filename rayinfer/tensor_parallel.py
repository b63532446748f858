"""Tensor and pipeline parallelism: coordinates of ranks, and collectives of a stage's ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch

from rayinfer.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RankCoordinates:
    """Coordinates of a rank: layers are split into stages, and a stage's matrices among its tensor ranks."""

    rank: int = 0  # stage x tensor_parallel_size + tensor_rank
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.world_size, f"no rank {self.rank} of {self.world_size}"

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def tensor_rank(self) -> int:
        """Its index among its stage's ranks."""
        return self.rank % self.tensor_parallel_size

    @property
    def stage(self) -> int:
        """The index of its stage."""
        return self.rank // self.tensor_parallel_size

    @property
    def is_first_stage(self) -> bool:
        """Whether it embeds tokens."""
        return self.stage == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether it computes logits."""
        return self.stage == self.pipeline_parallel_size - 1


class TensorGroup(Protocol):
    """The tensor ranks of one stage, as one of them sees them; all must call the same in the same order."""

    @property
    def rank(self) -> int:
        """The index of this rank."""
        ...

    @property
    def size(self) -> int:
        """The number of ranks."""
        ...

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum every rank's x, of one shape; an element's bits do not depend on what else is summed. x may be lost."""
        ...

    def all_gather(self, x: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        """Concatenate every rank's x [..., widths[rank]]: [..., sum of widths]."""
        ...

    def all_to_all(self, rows: torch.Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]) -> torch.Tensor:
        """Send the first send_counts[0] rows to rank 0, the next to rank 1, and so on; a count may be 0.

        Returns the received rows, receive_counts[i] of them from rank i, in the order of ranks.
        """
        ...


class SingleRankGroup:
    """A group of one."""

    rank = 0
    size = 1

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """See TensorGroup."""
        return x

    def all_gather(self, x: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        """See TensorGroup."""
        return x

    def all_to_all(self, rows: torch.Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]) -> torch.Tensor:
        """See TensorGroup."""
        return rows


class TorchGroup:
    """A process group of torch: gloo on a CPU, NCCL on GPUs.

    Once a rank is gone gloo raises RuntimeError. NCCL reports nothing by itself: a wait on its GPU lasts until
    the group is aborted, with invalid results; torch's watchdog may also end the whole process with SIGABRT.
    """

    def __init__(self, process_group: torch.distributed.ProcessGroup) -> None:
        self._group = process_group
        self.rank = process_group.rank()
        self.size = process_group.size()

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """See TensorGroup: on a CPU every rank adds all parts, in the order of ranks."""
        x = x.contiguous()
        if x.device.type != "cpu":
            self._group.allreduce([x]).wait()
            return x
        parts = self._gather(x)
        total = parts[0] if self.size == 2 else parts[0].float()
        for part in parts[1:]:
            total += part
        return total.to(x.dtype)

    def all_gather(self, x: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        """See TensorGroup."""
        gathered = self._gather(torch.nn.functional.pad(x, (0, max(widths) - x.shape[-1])).contiguous())
        return torch.cat([part[..., :width] for part, width in zip(gathered, widths, strict=True)], -1)

    def all_to_all(self, rows: torch.Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]) -> torch.Tensor:
        """See TensorGroup."""
        received = rows.new_empty(sum(receive_counts), *rows.shape[1:])
        self._group.alltoall_base(received, rows.contiguous(), list(receive_counts), list(send_counts)).wait()
        return received

    def _gather(self, x: torch.Tensor) -> torch.Tensor:
        """Stack every rank's x, of one shape: [size, *shape of x]."""
        gathered = x.new_empty(self.size, *x.shape)
        if x.device.type != "cpu":
            self._group._allgather_base(gathered.flatten(), x.flatten()).wait()
            return gathered
        # gloo's own collectives go through a thread of its own: direct sends take less than half the time.
        others = [rank for rank in range(self.size) if rank != self.rank]
        sent = [self._group.send([x], rank, tag=0) for rank in others]
        received = [self._group.recv([gathered[rank]], rank, tag=0) for rank in others]
        gathered[self.rank] = x
        for work in (*received, *sent):
            work.wait()
        return gathered


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's shard of a model: its coordinates, and its group."""

    coordinates: RankCoordinates
    group: TensorGroup

    def __post_init__(self) -> None:
        assert (self.group.rank, self.group.size) == (
            self.coordinates.tensor_rank,
            self.coordinates.tensor_parallel_size,
        )

    @property
    def is_unsharded(self) -> bool:
        """Whether it is the whole model."""
        return self.coordinates.world_size == 1


UNSHARDED = Shard(RankCoordinates(), SingleRankGroup())


def split(total: int, num_parts: int, what: str, unit: int = 1) -> list[range]:
    """Cut range(total) into contiguous parts as `even_parts` does, as even as whole units allow.

    Where there are fewer units than parts, units are split. Raises ConfigError for more parts than numbers; `what`
    names them.
    """
    if total < num_parts:
        raise ConfigError(f"{num_parts} ranks are too many for {total} {what}")
    num_units = -(-total // unit)
    if num_units < num_parts:
        num_units, unit = total, 1
    return [range(unit * part.start, min(total, unit * part.stop)) for part in even_parts(num_units, num_parts)]


def even_parts(total: int, num_parts: int) -> list[range]:
    """Cut range(total) into contiguous parts, the first ones larger by one where it must be; some may be empty."""
    each, more = divmod(total, num_parts)
    starts = [part * each + min(part, more) for part in range(num_parts + 1)]
    return [range(start, end) for start, end in pairwise(starts)]
