"""Attention from a decoder's tokens to the source that an encoder has read."""

import torch

from rayinfer.attention.sources import SourceBatch
from rayinfer.layers.linear import Linear, StackedLinear
from rayinfer_kernels import ops


class CrossAttention(torch.nn.Module):
    """The keys and values of a source are computed once, when it has been read, and kept in its row's blocks."""

    def __init__(
        self, hidden_size: int, num_heads: int, head_dim: int, *, bias: bool = False, scale: float | None = None
    ) -> None:
        super().__init__()
        width = num_heads * head_dim
        self.q_proj = Linear(hidden_size, width, bias=bias)
        self.kv_proj = StackedLinear(hidden_size, {"k_proj": width, "v_proj": width}, bias=bias)
        self.o_proj = Linear(width, hidden_size, bias=bias)
        self._head_dim = head_dim
        self._scale = head_dim**-0.5 if scale is None else scale
        self._kv_cache: ops.KVCache | None = None

    def bind(self, kv_cache: ops.KVCache) -> None:
        """Give the layer the blocks of all rows."""
        self._kv_cache = kv_cache

    def keep(self, encoded: torch.Tensor, slots: torch.Tensor) -> None:
        """Keep the keys and values of sources: encoded [num_source_tokens, hidden_size], slots [num_source_tokens]."""
        assert self._kv_cache is not None, "the layer has no cache yet"
        parts = torch.split(self.kv_proj.forward(encoded), self.kv_proj.widths, -1)
        key, value = (part.view(len(encoded), -1, self._head_dim) for part in parts)
        ops.write_kv(key, value, self._kv_cache, slots)

    def forward(self, x: torch.Tensor, sources: SourceBatch) -> torch.Tensor:
        """x [num_tokens, hidden_size] -> the same shape."""
        assert self._kv_cache is not None, "the layer has no cache yet"
        query = self.q_proj.forward(x).view(len(x), -1, self._head_dim)
        # Each token is a request of its own that stands at the end of its source: so it sees all of it.
        attended = ops.paged_attention(
            query, self._kv_cache, sources.block_tables, sources.query_starts, sources.lengths, self._scale
        )
        return self.o_proj.forward(attended.flatten(1))
