"""The attention of an encoder: every token of a source sees all the others."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F

from rayinfer.layers.linear import Linear, StackedLinear
from rayinfer.layers.relative_position_bias import RelativePositionBias
from rayinfer.layers.shards import Shardable, ShardSlice, scaled, shard_heads, shifted
from rayinfer.tensor_parallel import Shard


class EncoderAttention(torch.nn.Module, Shardable):
    """Sources lie one after the other, without padding, so that no result depends on what else is read."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        head_dim: int,
        *,
        bias: bool = False,
        scale: float | None = None,
        position_bias: RelativePositionBias | None = None,
    ) -> None:
        super().__init__()
        width = num_heads * head_dim
        self.qkv_proj = StackedLinear(hidden_size, dict.fromkeys(("q_proj", "k_proj", "v_proj"), width), bias=bias)
        self.o_proj = Linear(width, hidden_size, bias=bias)
        self._num_heads, self._head_dim = num_heads, head_dim
        self._scale = scale
        self._position_bias = position_bias

    def take_shard(self, shard: Shard) -> Mapping[str, ShardSlice]:
        """See Shardable: a rank has some of the heads."""
        rows = scaled(shard_heads(self._num_heads, self._num_heads, shard.coordinates).query, self._head_dim)
        whole = self._num_heads * self._head_dim
        cuts = self.qkv_proj.keep_outputs("qkv_proj", *(shifted(rows, part * whole) for part in range(3)))
        return cuts | self.o_proj.keep_inputs("o_proj", rows, shard.group)

    def forward(self, x: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """x [num_tokens, hidden_size], of sources of these `lengths`, -> the same shape."""
        stacked = self.qkv_proj.forward(x).view(len(x), 3, -1, self._head_dim)
        attended = [self._attend(source) for source in torch.split(stacked, list(lengths))]
        return self.o_proj.forward(torch.cat(attended))

    def _attend(self, source: torch.Tensor) -> torch.Tensor:
        """Source [length, 3, num_heads, head_dim] -> [length, num_heads x head_dim]."""
        query, key, value = source.permute(1, 2, 0, 3)
        bias = None if self._position_bias is None else self._position_bias.matrix(len(source)).to(source.dtype)
        attended = F.scaled_dot_product_attention(
            query[None], key[None], value[None], attn_mask=bias, scale=self._scale
        )
        return attended[0].transpose(0, 1).flatten(1)
