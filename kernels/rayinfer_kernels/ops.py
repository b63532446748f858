"""The one door to the kernels: every operation by name, run by the best implementation for the tensors at hand."""

import torch

from rayinfer_kernels.kv_cache import KVCache
from rayinfer_kernels.reference.attention import copy_blocks, paged_attention, write_kv
from rayinfer_kernels.reference.elementwise import add_rms_norm, rms_norm, rotary_embedding, silu_and_mul

__all__ = [
    "KVCache",
    "add_rms_norm",
    "allocate_kv_cache",
    "copy_blocks",
    "kv_block_bytes",
    "paged_attention",
    "rms_norm",
    "rotary_embedding",
    "silu_and_mul",
    "write_kv",
]


def allocate_kv_cache(
    num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> KVCache:
    """Reserve one layer's pool of blocks."""
    shape = (num_blocks, block_size, num_kv_heads, head_dim)
    return KVCache(*(torch.zeros(shape, dtype=dtype, device=device) for _ in range(2)))


def kv_block_bytes(block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes that one block of one layer takes."""
    return 2 * block_size * num_kv_heads * head_dim * dtype.itemsize
