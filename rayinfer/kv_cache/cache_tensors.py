"""Memory of KV blocks: one cache per layer, and copies of whole blocks between pools."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rayinfer_kernels import ops

_HOST = torch.device("cpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockShape:
    """Shape of one KV block: the keys and values of `block_size` tokens in every layer."""

    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype  # of the cache: the model's, or one of eight bits
    computed_on: torch.device = _HOST  # lays blocks out, those too that are kept elsewhere meanwhile

    @property
    def num_bytes(self) -> int:
        """Bytes of one block in all layers."""
        size = (self.block_size, self.num_kv_heads, self.head_dim, self.dtype, self.computed_on)
        return self.num_layers * ops.kv_block_bytes(*size)


class BlockPool:
    """A number of blocks: one cache for each layer, and a block has the same number in all of them.

    Blocks can be copied between any two pools of one shape. `pinned` is for host memory from and to which a GPU copies
    while it computes.
    """

    def __init__(self, shape: BlockShape, num_blocks: int, device: torch.device, *, pinned: bool = False) -> None:
        self.caches = allocate_kv_caches(
            *(shape.num_layers, num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim, shape.dtype, device),
            pinned=pinned,
            computed_on=shape.computed_on,
        )
        self._views: list[NDArray[np.uint8]] = []

    def copy_to(self, target: "BlockPool", blocks: Sequence[int], target_blocks: Sequence[int]) -> None:
        """Copy whole blocks of every layer: blocks[i] to the other pool's target_blocks[i]."""
        source_index, target_index = _index(blocks), _index(target_blocks)
        for cache, target_cache in zip(self.caches, target.caches, strict=True):
            ops.copy_blocks(cache, target_cache, source_index, target_index)

    def block_views(self) -> list[NDArray[np.uint8]]:
        """Return each tensor of each layer, in host memory, as bytes: [num_blocks, bytes of its part of a block]."""
        if not self._views:  # to make them takes as long as to copy a block
            tensors = [tensor for cache in self.caches for tensor in cache.tensors]
            self._views = [tensor.view(torch.uint8).view(tensor.shape[0], -1).numpy() for tensor in tensors]
        return self._views

    def move_to(self, target: "BlockPool", blocks: Sequence[int], target_blocks: Sequence[int]) -> None:
        """Copy as `copy_to` does and free each layer's memory once it is copied."""
        self._views = []
        source_index, target_index = _index(blocks), _index(target_blocks)
        for target_cache in target.caches:
            ops.copy_blocks(self.caches.pop(0), target_cache, source_index, target_index)


def _index(blocks: Sequence[int]) -> torch.Tensor:
    return torch.tensor(blocks, dtype=torch.int64)  # also when there are none


def allocate_kv_caches(
    num_layers: int,
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    pinned: bool = False,
    computed_on: torch.device | None = None,  # by default `device`
) -> list[ops.KVCache]:
    """Allocate one pool of blocks per layer."""
    size = (num_blocks, block_size, num_kv_heads, head_dim, dtype, device)
    return [ops.allocate_kv_cache(*size, pinned=pinned, computed_on=computed_on) for _ in range(num_layers)]
