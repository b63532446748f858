"""One layer's keys and values, cut into blocks; its layout is known to the kernels only."""

import math
import mmap
from dataclasses import dataclass

import torch

WORD_BYTES = 4
HEAD_DIM_MULTIPLE = 16


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of one layer, each head of a block in one piece; what lies behind head_dim is zero.

    A word is four bytes, so that one float or two bfloat16 numbers are multiplied at once: a key's words hold
    neighbours along the head, a value's words hold neighbouring tokens.
    """

    key: torch.Tensor  # [num_blocks, num_kv_heads, padded_dim / per_word, block_size, per_word]
    value: torch.Tensor  # [num_blocks, num_kv_heads, block_size / per_word, padded_dim, per_word]

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
    """Reserve one layer's pool of blocks; `pinned` host memory is what a GPU copies from and to while it computes."""
    per_word, padded_dim = _per_word(dtype), _padded(head_dim)
    heads = (num_blocks, num_kv_heads)
    return KVCache(
        _zeros((*heads, padded_dim // per_word, block_size, per_word), dtype, device, pinned),
        _zeros((*heads, block_size // per_word, padded_dim, per_word), dtype, device, pinned),
    )


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, pinned: bool) -> torch.Tensor:
    """On a CPU the system's own zero pages: a block takes memory, and time, only once something is written to it."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or pinned or num_bytes == 0:
        return torch.zeros(shape, dtype=dtype, device=device, pin_memory=pinned)
    return torch.frombuffer(mmap.mmap(-1, num_bytes), dtype=dtype).view(shape)


def kv_block_bytes(block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes that one block of one layer takes."""
    return 2 * block_size * num_kv_heads * _padded(head_dim) * dtype.itemsize


def _per_word(dtype: torch.dtype) -> int:
    return max(1, WORD_BYTES // dtype.itemsize)


def _padded(head_dim: int) -> int:
    return -(-head_dim // HEAD_DIM_MULTIPLE) * HEAD_DIM_MULTIPLE
