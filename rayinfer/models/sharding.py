"""Shards a decoder that has no weights yet: cuts it to one rank's part, and reports the cuts to the loader."""

from collections.abc import Collection

import torch

from rayinfer.layers.shards import Shardable, ShardSlice
from rayinfer.models.decoder import Decoder
from rayinfer.tensor_parallel import Shard


class PPMissingLayer(torch.nn.Module):
    """Stands for a module that is another rank's, so that all others keep their names."""


def shard(decoder: Decoder, share: Shard) -> dict[str, ShardSlice]:
    """ShardSlice a decoder on the meta device down to this rank's part; returns how, for each parameter that is cut.

    Raises ConfigError where there are too many ranks for the model.
    """
    assert isinstance(decoder, torch.nn.Module)
    if share.is_whole:
        return {}
    cuts = dict(decoder.take_shard(share))  # first: what it leaves out is not there any more
    for path, module in list(decoder.named_modules()):
        if isinstance(module, Shardable) and path:
            cuts |= {f"{path}.{name}": cut for name, cut in module.take_shard(share).items()}
    for name, cut in cuts.items():
        owner, _, kind = name.rpartition(".")
        kept = cut.of(decoder.get_parameter(name).data)
        setattr(decoder.get_submodule(owner), kind, torch.nn.Parameter(kept, requires_grad=False))
    return cuts


def leave_out(model: torch.nn.Module, modules: Collection[torch.nn.Module]) -> None:
    """Put PPMissingLayer in the place of these modules, under whatever names the model has them."""
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if any(child is module for module in modules):
                setattr(parent, name, PPMissingLayer())


def entry_name(share: Shard) -> str:
    """Name a rank's shard in the cache; empty for the whole model."""
    place = share.coordinates
    size = f"{place.tensor_parallel_size}x{place.pipeline_parallel_size}"
    return "" if share.is_whole else f";rank {place.rank} of {size}"
