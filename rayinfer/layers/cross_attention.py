"""Attention from a decoder's tokens to the source that an encoder has read."""

from collections.abc import Mapping

import torch

from rayinfer.attention.cross_attention_blocks import CrossAttentionBatch
from rayinfer.layers.linear import Linear, StackedLinear
from rayinfer.layers.shards import Shardable, ShardSlice, scaled, shard_heads, shifted
from rayinfer.tensor_parallel import Shard
from rayinfer_kernels import ops


class CrossAttention(torch.nn.Module, Shardable):
    """Cross-attention: a source's keys and values are computed once and kept in its row's blocks."""

    def __init__(
        self, hidden_size: int, num_heads: int, head_dim: int, *, bias: bool = False, scale: float | None = None
    ) -> None:
        super().__init__()
        width = num_heads * head_dim
        self.q_proj = Linear(hidden_size, width, bias=bias)
        self.kv_proj = StackedLinear(hidden_size, {"k_proj": width, "v_proj": width}, bias=bias)
        self.o_proj = Linear(width, hidden_size, bias=bias)
        self.num_heads, self._head_dim = num_heads, head_dim
        self._scale = head_dim**-0.5 if scale is None else scale
        self._kv_cache: ops.KVCache | None = None

    def take_shard(self, shard: Shard) -> Mapping[str, ShardSlice]:
        """See Shardable: a rank has some of the heads."""
        heads = shard_heads(self.num_heads, self.num_heads, shard.coordinates).query
        rows, values = scaled(heads, self._head_dim), self.num_heads * self._head_dim
        self.num_heads = len(heads)
        self.kv_proj.widths = [len(rows)] * 2
        cuts = self.q_proj.keep_outputs("q_proj", rows) | self.kv_proj.keep_outputs(
            "kv_proj", rows, shifted(rows, values)
        )
        return cuts | self.o_proj.keep_inputs("o_proj", rows, shard.group)

    def bind(self, kv_cache: ops.KVCache) -> None:
        """Give the layer the blocks of all rows."""
        self._kv_cache = kv_cache

    def keep(self, encoded: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Keep the keys and values of sources: encoded [num_source_tokens, hidden_size]."""
        assert self._kv_cache is not None, "bind the KV cache first"
        parts = torch.split(self.kv_proj.forward(encoded), self.kv_proj.widths, -1)
        key, value = (part.view(len(encoded), -1, self._head_dim) for part in parts)
        ops.write_kv(key, value, self._kv_cache, slot_mapping)

    def forward(self, x: torch.Tensor, sources: CrossAttentionBatch) -> torch.Tensor:
        """x [num_tokens, hidden_size] -> the same shape."""
        assert self._kv_cache is not None, "bind the KV cache first"
        query = self.q_proj.forward(x).view(len(x), -1, self._head_dim)
        # Each token is a request of its own at the end of its source, so it sees all of it.
        attended = ops.paged_attention(
            query, self._kv_cache, sources.block_tables, sources.cu_seqlens_q, sources.lengths, self._scale
        )
        return self.o_proj.forward(attended.flatten(1))
