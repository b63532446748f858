"""Coordinates and devices of an engine's ranks, and the protocol of their group."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch.distributed import ProcessGroup

from rayinfer.config import EngineConfig
from rayinfer.errors import ConfigError
from rayinfer.tensor_parallel import RankCoordinates, Shard


class Ranks(Protocol):
    """All ranks together, as one of them sees them while its part of the model is built."""

    coordinates: RankCoordinates
    device: torch.device
    world: ProcessGroup | None  # all ranks, where there are several stages

    @property
    def shard(self) -> Shard:
        """This rank's shard of the model."""
        ...

    def reduce_min(self, values: Sequence[int]) -> list[int]:
        """Return the elementwise minimum of all ranks' values."""
        ...


def coordinates_of(config: EngineConfig, rank: int) -> RankCoordinates:
    """Return a rank's coordinates among those that the settings ask for."""
    return RankCoordinates(rank, config.tensor_parallel_size, config.pipeline_parallel_size)


def any_device() -> torch.device:
    """Return the device of an engine of one rank."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def rank_device(coordinates: RankCoordinates) -> torch.device:
    """Return this rank's device; ranks that see the same GPUs take one each."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    num_devices = torch.cuda.device_count()
    if 1 < num_devices < coordinates.world_size:
        raise ConfigError(f"{coordinates.world_size} ranks need as many GPUs, and there are {num_devices}")
    return torch.device("cuda", coordinates.rank % num_devices)
