"""One layer's keys and values, cut into blocks; its layout is known to the kernels only."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of one layer: each [num_blocks, block_size, num_kv_heads, head_dim]."""

    key: torch.Tensor
    value: torch.Tensor

    @property
    def block_size(self) -> int:
        """Tokens in one block."""
        return self.key.shape[1]

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return self.key.shape[0]
