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

    place: RankCoordinates
    device: torch.device
    everybody: ProcessGroup | None  # all ranks, where there are several stages

    @property
    def share(self) -> Shard:
        """This rank's share of the model."""
        ...

    def agree_least(self, values: Sequence[int]) -> list[int]:
        """Return the elementwise minimum of all ranks' numbers."""
        ...


def place_of(config: EngineConfig, rank: int) -> RankCoordinates:
    """Return a rank's coordinates among those that the settings ask for."""
    return RankCoordinates(rank, config.tensor_parallel_size, config.pipeline_parallel_size)


def any_device() -> torch.device:
    """Return the device of an engine of one rank."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def rank_device(place: RankCoordinates) -> torch.device:
    """Return this rank's device; ranks that see the same GPUs take one each."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    num_devices = torch.cuda.device_count()
    if 1 < num_devices < place.world_size:
        raise ConfigError(f"{place.world_size} ranks need as many GPUs, and there are {num_devices}")
    return torch.device("cuda", place.rank % num_devices)
