"""One layer's keys and values, cut into blocks; a block's layout depends on the device that computes with it."""

from typing import Protocol

import torch

from rayinfer_kernels.gpu.paged_cache import allocate_paged_cache, paged_block_bytes
from rayinfer_kernels.vnni_cache import allocate_vnni_cache, vnni_block_bytes


class KVCache(Protocol):
    """Common interface of both cache layouts, `VnniKVCache` of CPUs and `PagedKVCache` of GPUs."""

    @property
    def key(self) -> torch.Tensor:
        """Return the keys; the first axis counts the blocks."""

    @property
    def value(self) -> torch.Tensor:
        """Return the values; the first axis counts the blocks."""

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Return all tensors of the cache; the first axis of each counts the blocks."""

    @property
    def num_blocks(self) -> int:
        """Return the number of blocks in the pool."""

    @property
    def num_kv_heads(self) -> int:
        """Return the number of key-value heads."""

    @property
    def block_size(self) -> int:
        """Return the number of tokens in one block."""

    def write(self, key: torch.Tensor, value: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Store key and value [num_tokens, num_kv_heads, head_dim] at `slot_mapping` [num_tokens], by torch alone."""

    def read_blocks(self, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of whole blocks [num_blocks] in float32: [num_kv_heads, num_tokens, head_dim or more]."""


def allocate_kv_cache(
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    pinned: bool = False,
    computed_on: torch.device | None = None,  # by default `device`
) -> KVCache:
    """Reserve one layer's pool of blocks on `device`, laid out for the device that computes with these blocks.

    A pool in the host's memory to which a GPU's blocks are copied is `computed_on` that GPU; `pinned`, the GPU copies
    from and to it while it computes. `dtype` is the model's own or has eight bits, then keys and values are rounded
    when they are written: int8, with scales, for processors, float8_e4m3fn for GPUs.
    """
    size = (num_blocks, block_size, num_kv_heads, head_dim, dtype, device)
    if _is_paged(computed_on or device):
        return allocate_paged_cache(*size, pinned=pinned)
    if pinned:
        raise ValueError("pinned is for blocks that a GPU computes with")
    return allocate_vnni_cache(*size)


def kv_block_bytes(
    block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, computed_on: torch.device | None = None
) -> int:
    """Return the bytes of one block of one layer, by default in the CPU's layout."""
    block_bytes = paged_block_bytes if computed_on is not None and _is_paged(computed_on) else vnni_block_bytes
    return block_bytes(block_size, num_kv_heads, head_dim, dtype)


def _is_paged(computed_on: torch.device) -> bool:
    return computed_on.type == "cuda"
