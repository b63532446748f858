"""One layer's keys and values as GPUs read them: a head's part of a block is one plain [block_size, head_dim] tile."""

from dataclasses import dataclass

import torch

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn)


@dataclass(frozen=True, slots=True)
class PagedKVCache:
    """Keys and values of one layer, in the model's type, or in float8_e4m3fn: unscaled, saturating at 448.

    Blocks may hold any number of tokens and heads any number of channels. Fastest are blocks of a power of two from 16
    and heads of a multiple of 16, whose rows begin where 16 bytes can be loaded at once.
    """

    key: torch.Tensor  # [num_blocks, num_kv_heads, block_size, head_dim], in one piece
    value: torch.Tensor  # the same

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Return all tensors of the cache; the first axis of each counts the blocks."""
        return self.key, self.value

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
        return self.key.shape[2]

    @property
    def head_dim(self) -> int:
        """Return the number of channels of a head."""
        return self.key.shape[3]

    def write(self, key: torch.Tensor, value: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Store key and value [num_tokens, num_kv_heads, head_dim] at `slot_mapping` [num_tokens]; slot -1: nothing."""
        is_kept = slot_mapping >= 0
        slot_mapping = slot_mapping[is_kept]
        block, offset = slot_mapping // self.block_size, slot_mapping % self.block_size
        for stored, given in ((self.key, key), (self.value, value)):
            rounded = in_cache_type(given[is_kept], stored.dtype)
            _indexable(stored).transpose(1, 2)[block, offset] = _indexable(rounded)

    def read_blocks(self, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of whole blocks [num_blocks] in float32: [num_kv_heads, num_tokens, head_dim]."""
        key, value = (_indexable(stored)[blocks].view(stored.dtype).float() for stored in self.tensors)
        return key.transpose(0, 1).flatten(1, 2), value.transpose(0, 1).flatten(1, 2)


def _indexable(tensor: torch.Tensor) -> torch.Tensor:
    """View eight-bit floats as bytes, since torch cannot index them on every device."""
    return tensor.view(torch.uint8) if tensor.dtype is torch.float8_e4m3fn else tensor


def in_cache_type(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round to a cache's type; in eight bits what is too large becomes the largest number, not NaN."""
    if dtype is torch.float8_e4m3fn:
        largest = torch.finfo(dtype).max
        numbers = numbers.float().clamp(-largest, largest)
    return numbers.to(dtype)


def largest_number(cache: PagedKVCache) -> int:
    """Return the largest number of an eight-bit cache; 0 for a cache of the model's type."""
    dtype = cache.key.dtype
    return int(torch.finfo(dtype).max) if dtype is torch.float8_e4m3fn else 0


def allocate_paged_cache(
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    pinned: bool = False,
) -> PagedKVCache:
    """Reserve one layer's pool of blocks; raises ValueError for types that the kernels cannot read."""
    if dtype not in DTYPES:
        raise ValueError(f"a GPU's cache has no numbers of {dtype}, but of {', '.join(map(str, DTYPES))}")
    shape = (num_blocks, num_kv_heads, block_size, head_dim)
    key, value = (torch.zeros(shape, dtype=dtype, device=device, pin_memory=pinned) for _ in range(2))
    return PagedKVCache(key, value)


def paged_block_bytes(block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Return the bytes of one block of one layer."""
    return 2 * block_size * num_kv_heads * head_dim * dtype.itemsize
