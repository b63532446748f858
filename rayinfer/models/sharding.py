"""Sharding of a decoder without weights: it is cut to one rank's part, and the cuts are returned to the loader."""

from collections.abc import Collection

import torch

from rayinfer.layers.shards import Shardable, ShardSlice
from rayinfer.models.decoder import Decoder
from rayinfer.tensor_parallel import Shard


class PPMissingLayer(torch.nn.Module):
    """Placeholder of a module of another rank, so that all others keep their names."""


def shard_decoder(decoder: Decoder, shard: Shard) -> dict[str, ShardSlice]:
    """Cut a decoder on the meta device down to this rank's part; returns how, for each parameter that is cut.

    Raises ConfigError where there are too many ranks for the model.
    """
    assert isinstance(decoder, torch.nn.Module)
    if shard.is_unsharded:
        return {}
    cuts = dict(decoder.take_shard(shard))  # first: modules that it leaves out are not visited below
    for path, module in list(decoder.named_modules()):
        if isinstance(module, Shardable) and path:
            cuts |= {f"{path}.{name}": cut for name, cut in module.take_shard(shard).items()}
    for name, cut in cuts.items():
        owner, _, kind = name.rpartition(".")
        kept = cut.of(decoder.get_parameter(name).data)
        setattr(decoder.get_submodule(owner), kind, torch.nn.Parameter(kept, requires_grad=False))
    return cuts


def leave_out(model: torch.nn.Module, modules: Collection[torch.nn.Module]) -> None:
    """Replace these modules by PPMissingLayer, under all names that the model has for them."""
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if any(child is module for module in modules):
                setattr(parent, name, PPMissingLayer())


def entry_name(shard: Shard) -> str:
    """Name a rank's shard in the cache; empty for the whole model."""
    coordinates = shard.coordinates
    size = f"{coordinates.tensor_parallel_size}x{coordinates.pipeline_parallel_size}"
    return "" if shard.is_unsharded else f";rank {coordinates.rank} of {size}"
