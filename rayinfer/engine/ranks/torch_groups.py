"""torch's process groups of one engine's rank: gloo on a CPU, NCCL on GPUs."""

import hmac
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, ProcessGroup, Store  # type: ignore[attr-defined]

from rayinfer.engine.ranks.timed_group import TimedGroup
from rayinfer.errors import EngineDead
from rayinfer.liveness import DEFAULT_LIMITS
from rayinfer.tensor_parallel import RankCoordinates, Shard, SingleRankGroup, TensorGroup, TorchGroup
from rayinfer.wire import sign


@dataclass(frozen=True, slots=True)
class TorchGroups:
    """A rank's shard, with the group of its stage's tensor ranks, and the group of all ranks where there are stages."""

    shard: Shard
    world: ProcessGroup | None
    process_groups: tuple[ProcessGroup, ...]


def open_groups(
    coordinates: RankCoordinates,
    store: Store,
    device: torch.device,
    local_host: str,
    key: str,
    timeout_s: float = DEFAULT_LIMITS.step_timeout_s,
) -> TorchGroups:
    """Build the groups together with the other ranks; every wait in them ends after `timeout_s`.

    gloo listens at `local_host` alone, and its peers prove the key before any other data. Raises RuntimeError,
    EngineDead.
    """
    tensors: TensorGroup = SingleRankGroup()
    world, groups = None, []
    timeout = timedelta(seconds=timeout_s)
    if coordinates.pipeline_parallel_size > 1:
        rank, size = coordinates.rank, coordinates.world_size
        world = _open(PrefixStore("all", store), rank, size, device, local_host, timeout)
        _verify(world, device, f"{key} all")
        groups.append(world)
    if coordinates.tensor_parallel_size > 1:
        name, size = f"stage{coordinates.stage}", coordinates.tensor_parallel_size
        stage = _open(PrefixStore(name, store), coordinates.tensor_rank, size, device, local_host, timeout)
        _verify(stage, device, f"{key} {name}")
        groups.append(stage)
        tensors = TimedGroup(TorchGroup(stage))
    return TorchGroups(Shard(coordinates, tensors), world, tuple(groups))


def _open(
    store: Store, rank: int, size: int, device: torch.device, local_host: str, timeout: timedelta
) -> ProcessGroup:
    if device.type == "cuda":
        options: Any = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(store, rank, size, options)  # type: ignore[return-value]
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timeout
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=local_host)]
    return dist.ProcessGroupGloo(store, rank, size, options)  # type: ignore[return-value]


def _verify(group: ProcessGroup, device: torch.device, key: str) -> None:
    """Exchange proofs of the key over gloo's connections: its ports accept the first client as a rank."""
    if device.type == "cuda":
        return  # NCCL's sockets check a random value of its id, which is exchanged over our connections
    own, others = group.rank(), [rank for rank in range(group.size()) if rank != group.rank()]
    sent = [group.send([_proof(key, own, other)], other, 0) for other in others]
    received = [torch.empty_like(_proof(key, other, own)) for other in others]
    for work in [group.recv([proof], other, 0) for other, proof in zip(others, received, strict=True)] + sent:
        work.wait()
    for other, proof in zip(others, received, strict=True):
        if not hmac.compare_digest(bytes(proof.tolist()), bytes(_proof(key, other, own).tolist())):
            raise EngineDead(f"the peer connected as rank {other} of a group does not have the engine's key")


def _proof(key: str, sender: int, receiver: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(sign(key, f"{sender} to {receiver}")), dtype=torch.uint8)
