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
from rayinfer.tensor_parallel import RankCoordinates, Shard, SingleRankGroup, TensorGroup, TorchGroup

STEP_TIMEOUT_S = 1800.0  # for what ranks that live compute in one step: no fault of one may hold all for ever


@dataclass(frozen=True, slots=True)
class TorchGroups:
    """A rank's share, with the group of its stage's tensor ranks, and the group of all ranks where there are stages."""

    share: Shard
    everybody: ProcessGroup | None
    process_groups: tuple[ProcessGroup, ...]


def open_groups(place: RankCoordinates, store: Store, device: torch.device, own_host: str, key: str) -> TorchGroups:
    """Build the groups, with the other ranks, which do the same at the same time; raises RuntimeError, EngineDead.

    gloo listens at `own_host` alone. What it connects to shows that it knows the key before anything else goes there.
    """
    tensors: TensorGroup = SingleRankGroup()
    everybody, groups = None, []
    if place.pipeline_parallel_size > 1:
        everybody = _open(PrefixStore("all", store), place.rank, place.world_size, device, own_host)
        _verify(everybody, device, f"{key} all")
        groups.append(everybody)
    if place.tensor_parallel_size > 1:
        name, size = f"stage{place.stage}", place.tensor_parallel_size
        stage = _open(PrefixStore(name, store), place.tensor_rank, size, device, own_host)
        _verify(stage, device, f"{key} {name}")
        groups.append(stage)
        tensors = TimedGroup(TorchGroup(stage))
    return TorchGroups(Shard(place, tensors), everybody, tuple(groups))


def _open(store: Store, rank: int, size: int, device: torch.device, own_host: str) -> ProcessGroup:
    timeout = timedelta(seconds=STEP_TIMEOUT_S)
    if device.type == "cuda":
        options: Any = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(store, rank, size, options)  # type: ignore[return-value]
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timeout
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=own_host)]
    return dist.ProcessGroupGloo(store, rank, size, options)  # type: ignore[return-value]


def _verify(group: ProcessGroup, device: torch.device, key: str) -> None:
    """Exchange proofs of the key over gloo's connections: its ports take the first client for a rank."""
    if device.type == "cuda":
        return  # NCCL's sockets check a random word of its id, which comes over our lines
    own, others = group.rank(), [rank for rank in range(group.size()) if rank != group.rank()]
    sent = [group.send([_proof(key, own, other)], other, 0) for other in others]
    received = [torch.empty_like(_proof(key, other, own)) for other in others]
    for work in [group.recv([proof], other, 0) for other, proof in zip(others, received, strict=True)] + sent:
        work.wait()
    for other, proof in zip(others, received, strict=True):
        if not hmac.compare_digest(bytes(proof.tolist()), bytes(_proof(key, other, own).tolist())):
            raise EngineDead(f"what is connected as rank {other} of a group does not know the engine's key")


def _proof(key: str, sender: int, receiver: int) -> torch.Tensor:
    digest = hmac.digest(key.encode(), f"{sender} to {receiver}".encode(), "sha256")
    return torch.frombuffer(bytearray(digest), dtype=torch.uint8)
