"""KV cache of one layer for CPUs: numbers in pairs that one instruction multiplies (VNNI layout)."""

import contextlib
import math
import mmap
import sys
from dataclasses import dataclass

import torch
import torch.nn.functional as F

HEAD_DIM_MULTIPLE = 16


@dataclass(frozen=True, slots=True)
class KVScales:
    """Scale factors of keys and values, per token and head: [num_blocks, num_kv_heads, block_size] each."""

    key: torch.Tensor
    value: torch.Tensor


@dataclass(frozen=True, slots=True)
class VnniKVCache:
    """Keys and values of one layer, each head of a block in one piece; what lies behind head_dim is zero.

    Two bfloat16 numbers are multiplied by one instruction, so they lie in pairs: of neighbors along the head for
    a key, of neighboring tokens for a value. Other numbers are stored one by one. Those of eight bits have scales.
    """

    key: torch.Tensor  # [num_blocks, num_kv_heads, padded_dim / pair_size, block_size, pair_size]
    value: torch.Tensor  # [num_blocks, num_kv_heads, block_size / pair_size, padded_dim, pair_size]
    scales: KVScales | None = None

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Return all tensors of the cache; the first axis of each counts the blocks."""
        numbers = (self.key, self.value)
        return numbers if self.scales is None else (*numbers, self.scales.key, self.scales.value)

    @property
    def num_blocks(self) -> int:
        """Return the number of blocks in the pool."""
        return self.key.shape[0]

    @property
    def num_kv_heads(self) -> int:
        """Return the number of key-value heads."""
        return self.key.shape[1]

    @property
    def block_size(self) -> int:
        """Return the number of tokens in one block."""
        return self.key.shape[3]

    @property
    def padded_dim(self) -> int:
        """Return the number of channels of a head as it is stored."""
        return self.value.shape[3]

    def write(self, key: torch.Tensor, value: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Store key and value [num_tokens, num_kv_heads, head_dim] at `slot_mapping` [num_tokens]."""
        block, offset = slot_mapping // self.block_size, slot_mapping % self.block_size
        if self.scales is not None:
            key, self.scales.key.mT[block, offset] = _quantize_int8(key)
            value, self.scales.value.mT[block, offset] = _quantize_int8(value)
        padding = (0, self.padded_dim - key.shape[-1])
        pair_size = self.key.shape[-1]
        # [num_blocks, block_size, num_kv_heads, padded_dim / pair_size, pair_size]
        keys = self.key.permute(0, 3, 1, 2, 4)
        keys[block, offset] = F.pad(key, padding).view(*key.shape[:2], -1, pair_size)
        # [num_blocks, block_size / pair_size, pair_size, num_kv_heads, padded_dim]
        values = self.value.permute(0, 2, 4, 1, 3)
        values[block, offset // pair_size, offset % pair_size] = F.pad(value, padding)

    def read_blocks(self, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of whole blocks [num_blocks] in float32: [num_kv_heads, num_tokens, padded_dim] each."""
        key = self.key[blocks].permute(1, 0, 3, 2, 4).flatten(3).flatten(1, 2).float()
        value = self.value[blocks].permute(1, 0, 2, 4, 3).flatten(1, 3).float()
        if self.scales is None:
            return key, value
        scales = (self.scales.key, self.scales.value)
        key_scales, value_scales = (part[blocks].transpose(0, 1).flatten(1)[..., None] for part in scales)
        return key * key_scales, value * value_scales


def allocate_vnni_cache(
    num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> VnniKVCache:
    """Reserve one layer's pool of blocks."""
    pair_size, padded_dim = _pair_size(dtype), _padded(head_dim)
    if num_blocks < 0 or block_size % pair_size:
        raise ValueError(f"{num_blocks} blocks of {block_size} tokens, of which {pair_size} stand together")
    heads = (num_blocks, num_kv_heads)
    key = _zeros((*heads, padded_dim // pair_size, block_size, pair_size), dtype, device)
    value = _zeros((*heads, block_size // pair_size, padded_dim, pair_size), dtype, device)
    if dtype is not torch.int8:
        return VnniKVCache(key, value)
    key_scales, value_scales = (_zeros((*heads, block_size), torch.float32, device) for _ in range(2))
    return VnniKVCache(key, value, KVScales(key_scales, value_scales))


def vnni_block_bytes(block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Return the bytes of one block of one layer."""
    scale_bytes = torch.float32.itemsize if dtype is torch.int8 else 0
    return 2 * block_size * num_kv_heads * (_padded(head_dim) * dtype.itemsize + scale_bytes)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Allocate zeros; on a CPU from the system's zero pages, so that a block takes memory only once written to.

    In huge pages, where the system has them: blocks are read in any order, and looking up a page each time costs more
    than a tenth of attention's time.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or num_bytes == 0:
        return torch.zeros(shape, dtype=dtype, device=device)
    pages = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a kernel may be built without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype).view(shape)


def _quantize_int8(heads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round [num_tokens, num_kv_heads, head_dim] to int8; also returns the scales [num_tokens, num_kv_heads]."""
    heads = heads.float()
    scales = heads.abs().amax(-1) / 127
    return (heads / scales.where(scales > 0, 1.0)[..., None]).round().to(torch.int8), scales


def _pair_size(dtype: torch.dtype) -> int:
    return 2 if dtype.itemsize == 2 else 1


def _padded(head_dim: int) -> int:
    return -(-head_dim // HEAD_DIM_MULTIPLE) * HEAD_DIM_MULTIPLE
