"""Causal self-attention with its projections."""

from collections.abc import Mapping
from typing import NamedTuple

import torch

from rayinfer.attention.paged_attention import AttentionBatch, PagedAttention
from rayinfer.layers.linear import FusedLinear, Linear, StackedLinear
from rayinfer.layers.relative_position_bias import RelativePositionBias
from rayinfer.layers.rotary_embedding import Angles, RotaryEmbedding
from rayinfer.layers.shards import HeadShard, Shardable, ShardSlice, scaled, shard_heads
from rayinfer.tensor_parallel import Shard


class Heads(NamedTuple):
    """Query, key and value of a step's tokens; each [num_tokens, heads of its own, head_dim]."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


class SelfAttention(torch.nn.Module, Shardable):
    """Grouped-query attention (Ainslie et al. 2023), with rotary positions unless `rotary` is None.

    `query_norm` and `key_norm` go over each head before it is rotated. A token sees the last `window` tokens, or all.
    `has_sinks`: each head has the score of one more token, without a value. `is_fused`: the checkpoint holds the
    projections of queries, keys and values in one tensor.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        rotary: RotaryEmbedding | None,
        qkv_bias: bool = False,
        output_bias: bool = False,
        query_norm: torch.nn.Module | None = None,
        key_norm: torch.nn.Module | None = None,
        window: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        position_bias: RelativePositionBias | None = None,
        has_sinks: bool = False,
        is_fused: bool = False,
    ) -> None:
        super().__init__()
        query_width, kv_width = num_heads * head_dim, num_kv_heads * head_dim
        parts = {"q_proj": query_width, "k_proj": kv_width, "v_proj": kv_width}
        self.qkv_proj: StackedLinear | FusedLinear
        if is_fused:
            self.qkv_proj = FusedLinear(hidden_size, list(parts.values()), bias=qkv_bias)
        else:
            self.qkv_proj = StackedLinear(hidden_size, parts, bias=qkv_bias)
        self.o_proj = Linear(query_width, hidden_size, bias=output_bias)
        self.q_norm, self.k_norm = query_norm, key_norm
        self.attention = PagedAttention(head_dim, scale=scale, window=window, softcap=softcap)
        self._rotary = rotary
        self._position_bias = position_bias
        self.sinks = torch.nn.Parameter(torch.empty(num_heads), requires_grad=False) if has_sinks else None
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim

    @property
    def is_plain(self) -> bool:
        """Whether positions are encoded by rotation alone, or not at all, without capped scores and sinks."""
        return self._position_bias is None and self.sinks is None and not self.attention.softcap

    @property
    def is_rotated(self) -> bool:
        """Whether queries and keys have rotary positions."""
        return self._rotary is not None

    def take_shard(self, shard: Shard) -> Mapping[str, ShardSlice]:
        """See Shardable: a rank has some of the heads."""
        heads = shard_heads(self.num_heads, self.num_kv_heads, shard.coordinates)
        columns = scaled(heads.query, self.head_dim)
        cuts = self.qkv_proj.keep_outputs("qkv_proj", *self._projected_rows(heads))
        cuts |= self.o_proj.keep_inputs("o_proj", columns, shard.group)
        if self.sinks is not None:
            cuts["sinks"] = ShardSlice(0, (heads.query,))
        self.num_heads, self.num_kv_heads = len(heads.query), len(heads.key_value)
        self.qkv_proj.widths = [self.head_dim * count for count in (self.num_heads, *2 * (self.num_kv_heads,))]
        return cuts

    def _projected_rows(self, heads: HeadShard) -> list[range]:
        """Return the outputs of `qkv_proj` that belong to these heads."""
        width, keys = self.head_dim, self.num_heads * self.head_dim
        values = keys + self.num_kv_heads * width
        return [
            scaled(heads.query, width),
            scaled(heads.key_value, width, keys),
            scaled(heads.key_value, width, values),
        ]

    def split_heads(self, stacked: torch.Tensor) -> Heads:
        """Split the product of `qkv_proj` [num_tokens, all widths] into heads."""
        parts = torch.split(stacked, self.qkv_proj.widths, -1)
        return Heads(*(part.view(len(stacked), -1, self.head_dim) for part in parts))

    def normalize(self, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Apply the norms, if any, before rotation; both [num_tokens, heads of its own, head_dim]."""
        if self.q_norm is not None:
            query = self.q_norm.forward(query)
        if self.k_norm is not None:
            key = self.k_norm.forward(key)
        return query, key

    def scale_queries(self, query: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        """Scale rotated queries [num_tokens, num_heads, head_dim] by position; here they stay as they are."""
        return query

    def forward(self, x: torch.Tensor, angles: Angles | None, batch: AttentionBatch) -> torch.Tensor:
        """x [num_tokens, hidden_size] -> the same shape."""
        query, key, value = self.split_heads(self.qkv_proj.forward(x))
        query, key = self.normalize(query, key)
        if self._rotary is not None and angles is not None:
            query, key = self._rotary.forward(query, angles), self._rotary.forward(key, angles)
        query = self.scale_queries(query, batch)
        bias = None if self._position_bias is None else self._position_bias.table
        sinks = None if self.sinks is None else self.sinks.float()
        attended = self.attention.forward(query, key, value, batch, bias, sinks)
        return self.o_proj.forward(attended.flatten(1))
