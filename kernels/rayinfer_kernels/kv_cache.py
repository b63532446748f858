"""One layer's keys and values, cut into blocks; its layout is known to the kernels only."""

import contextlib
import math
import mmap
import sys
from dataclasses import dataclass

import torch

HEAD_DIM_MULTIPLE = 16


@dataclass(frozen=True, slots=True)
class KVScales:
    """What the numbers of each token and head are to be multiplied by: [num_blocks, num_kv_heads, block_size] each."""

    key: torch.Tensor
    value: torch.Tensor


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of one layer, each head of a block in one piece; what lies behind head_dim is zero.

    Two bfloat16 numbers are multiplied by one instruction, so they stand in pairs: of neighbours along the head for a
    key, of neighbouring tokens for a value. Other numbers stand alone. Those of eight bits have scales.
    """

    key: torch.Tensor  # [num_blocks, num_kv_heads, padded_dim / in_pairs, block_size, in_pairs]
    value: torch.Tensor  # [num_blocks, num_kv_heads, block_size / in_pairs, padded_dim, in_pairs]
    scales: KVScales | None = None

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All that a block consists of; the first axis of each counts the blocks."""
        numbers = (self.key, self.value)
        return numbers if self.scales is None else (*numbers, self.scales.key, self.scales.value)

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return self.key.shape[0]

    @property
    def num_kv_heads(self) -> int:
        """Heads that have keys and values of their own."""
        return self.key.shape[1]

    @property
    def block_size(self) -> int:
        """Tokens in one block."""
        return self.key.shape[3]

    @property
    def padded_dim(self) -> int:
        """Channels of a head as it is stored."""
        return self.value.shape[3]


def allocate_kv_cache(
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    pinned: bool = False,
) -> KVCache:
    """Reserve one layer's pool of blocks; `pinned` host memory is what a GPU copies from and to while it computes.

    `dtype` is the model's own, or int8: then keys and values are rounded to eight bits when they are written.
    """
    in_pairs, padded_dim = _in_pairs(dtype), _padded(head_dim)
    if num_blocks < 0 or block_size % in_pairs:
        raise ValueError(f"{num_blocks} blocks of {block_size} tokens, of which {in_pairs} stand together")
    heads = (num_blocks, num_kv_heads)
    key = _zeros((*heads, padded_dim // in_pairs, block_size, in_pairs), dtype, device, pinned)
    value = _zeros((*heads, block_size // in_pairs, padded_dim, in_pairs), dtype, device, pinned)
    if dtype is not torch.int8:
        return KVCache(key, value)
    key_scales, value_scales = (_zeros((*heads, block_size), torch.float32, device, pinned) for _ in range(2))
    return KVCache(key, value, KVScales(key_scales, value_scales))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, pinned: bool) -> torch.Tensor:
    """On a CPU the system's own zero pages: a block takes memory, and time, only once something is written to it.

    In huge pages, where the system has them: blocks are read in any order, and looking up a page each time costs more
    than a tenth of attention's time.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or pinned or num_bytes == 0:
        return torch.zeros(shape, dtype=dtype, device=device, pin_memory=pinned)
    pages = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a kernel may be built without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype).view(shape)


def kv_block_bytes(block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes that one block of one layer takes."""
    scale_bytes = torch.float32.itemsize if dtype is torch.int8 else 0
    return 2 * block_size * num_kv_heads * (_padded(head_dim) * dtype.itemsize + scale_bytes)


def _in_pairs(dtype: torch.dtype) -> int:
    return 2 if dtype.itemsize == 2 else 1


def _padded(head_dim: int) -> int:
    return -(-head_dim // HEAD_DIM_MULTIPLE) * HEAD_DIM_MULTIPLE
