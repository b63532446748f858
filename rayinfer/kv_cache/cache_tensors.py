"""The memory of KV blocks: one cache per layer, and whole blocks that move between pools."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rayinfer_kernels import ops


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockShape:
    """What one KV block holds: the keys and values of `block_size` tokens in every layer."""

    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype  # of the cache: the model's, or int8

    @property
    def num_bytes(self) -> int:
        """Bytes of one block in all layers."""
        return self.num_layers * ops.kv_block_bytes(self.block_size, self.num_kv_heads, self.head_dim, self.dtype)


class BlockPool:
    """A number of blocks: one cache for each layer, and a block has the same number in all of them.

    `pinned` is for host memory from and to which a GPU copies while it computes.
    """

    def __init__(self, shape: BlockShape, num_blocks: int, device: torch.device, *, pinned: bool = False) -> None:
        self.caches = allocate_kv_caches(
            *(shape.num_layers, num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim, shape.dtype, device),
            pinned=pinned,
        )

    def copy_to(self, target: "BlockPool", blocks: Sequence[int], target_blocks: Sequence[int]) -> None:
        """Copy whole blocks of every layer: blocks[i] to the other pool's target_blocks[i]."""
        source_index, target_index = _index(blocks), _index(target_blocks)
        for cache, target_cache in zip(self.caches, target.caches, strict=True):
            ops.copy_blocks(cache, target_cache, source_index, target_index)

    def move_to(self, target: "BlockPool", blocks: Sequence[int], target_blocks: Sequence[int]) -> None:
        """Copy as `copy_to` does and give each layer's memory back once it is copied: this pool ends."""
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
) -> list[ops.KVCache]:
    """One pool of blocks per layer."""
    return [
        ops.allocate_kv_cache(num_blocks, block_size, num_kv_heads, head_dim, dtype, device, pinned=pinned)
        for _ in range(num_layers)
    ]
