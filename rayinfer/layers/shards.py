"""A rank's shard of a layer under tensor parallelism."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from rayinfer.errors import ConfigError
from rayinfer.tensor_parallel import RankCoordinates, Shard, split
from rayinfer_kernels import ops


@dataclass(frozen=True, slots=True)
class ShardSlice:
    """The part of a parameter that a rank holds: some ranges along one axis, one behind the other."""

    axis: int
    ranges: tuple[range, ...]

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Take this part of the whole parameter."""
        if tensor.is_meta:  # operations on such tensors import torch's compiler, which takes seconds of a start
            shape = list(tensor.shape)
            shape[self.axis] = sum(map(len, self.ranges))
            return tensor.new_empty(shape)
        parts = [tensor.narrow(self.axis, kept.start, len(kept)) for kept in self.ranges]
        return parts[0] if len(parts) == 1 else torch.cat(parts, self.axis)


class Shardable(ABC):
    """A module that can be divided among ranks."""

    @abstractmethod
    def take_shard(self, shard: Shard) -> Mapping[str, ShardSlice]:
        """Become this rank's shard and return the cuts of its parameters by name, relative to this module.

        Raises ConfigError where there are more ranks than parts.
        """


class HeadShard(NamedTuple):
    """The heads of a rank."""

    query: range
    key_value: range


def shard_heads(num_heads: int, num_kv_heads: int, coordinates: RankCoordinates) -> HeadShard:
    """Shard heads of keys and values with the queries that look there.

    Where there are more ranks than heads of keys and values, several ranks hold the same one and share its queries.
    Raises ConfigError for more ranks than heads of queries.
    """
    per_kv_head, size = num_heads // num_kv_heads, coordinates.tensor_parallel_size
    if size <= num_kv_heads:
        kept = split(num_kv_heads, size, "heads of keys and values")[coordinates.tensor_rank]
        return HeadShard(range(kept.start * per_kv_head, kept.stop * per_kv_head), kept)
    if size > num_heads:
        raise ConfigError(f"{size} ranks are too many for {num_heads} attention heads")
    for kv_head, ranks in enumerate(split(size, num_kv_heads, "ranks")):
        if coordinates.tensor_rank in ranks:
            kept = split(per_kv_head, len(ranks), "attention heads")[coordinates.tensor_rank - ranks.start]
            first = kv_head * per_kv_head
            return HeadShard(range(first + kept.start, first + kept.stop), range(kv_head, kv_head + 1))
    raise AssertionError("every rank is in one of the parts")


def shard_width(width: int, shard: Shard) -> range:
    """Shard what lies between two matrices; groups of inputs that have a scale in common stay together."""
    return split(width, shard.group.size, "channels of a feed-forward", ops.GROUP_SIZE)[shard.group.rank]


def shifted(kept: range, start: int) -> range:
    """The same part of what begins at `start`."""
    return range(start + kept.start, start + kept.stop)


def scaled(kept: range, width: int, start: int = 0) -> range:
    """The rows of things that are `width` rows each, the first of which begins at `start`."""
    return range(start + kept.start * width, start + kept.stop * width)
