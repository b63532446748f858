"""The attention of an encoder: every token of a source sees all the others."""

from collections.abc import Mapping, Sequence
from itertools import groupby

import torch
import torch.nn.functional as F

from rayinfer.layers.linear import FusedLinear, Linear, StackedLinear
from rayinfer.layers.relative_position_bias import RelativePositionBias
from rayinfer.layers.rotary_embedding import Angles, RotaryEmbedding
from rayinfer.layers.shards import Shardable, ShardSlice, scaled, shard_heads, shifted
from rayinfer.tensor_parallel import Shard


class EncoderAttention(torch.nn.Module, Shardable):
    """Sources lie one after the other, without padding, so that no result depends on what else is read.

    Those of one length that are neighbors are computed together. A token sees those at most `window` tokens away, or
    all. `is_fused`: the checkpoint holds the projections of queries, keys and values in one tensor.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        head_dim: int,
        *,
        bias: bool = False,
        scale: float | None = None,
        position_bias: RelativePositionBias | None = None,
        rotary: RotaryEmbedding | None = None,
        window: int | None = None,
        is_fused: bool = False,
    ) -> None:
        super().__init__()
        width = num_heads * head_dim
        self.qkv_proj: StackedLinear | FusedLinear
        if is_fused:
            self.qkv_proj = FusedLinear(hidden_size, [width] * 3, bias=bias)
        else:
            self.qkv_proj = StackedLinear(hidden_size, dict.fromkeys(("q_proj", "k_proj", "v_proj"), width), bias=bias)
        self.o_proj = Linear(width, hidden_size, bias=bias)
        self._num_heads, self._head_dim = num_heads, head_dim
        self._scale = scale
        self._position_bias = position_bias
        self._rotary = rotary
        self._window = window

    @property
    def sees_all(self) -> bool:
        """Whether it neither rotates nor has a window, and scales scores by the width of a head."""
        return self._rotary is None and self._window is None and self._scale in (None, self._head_dim**-0.5)

    def take_shard(self, shard: Shard) -> Mapping[str, ShardSlice]:
        """See Shardable: a rank has some of the heads."""
        rows = scaled(shard_heads(self._num_heads, self._num_heads, shard.coordinates).query, self._head_dim)
        whole = self._num_heads * self._head_dim
        cuts = self.qkv_proj.keep_outputs("qkv_proj", *(shifted(rows, part * whole) for part in range(3)))
        return cuts | self.o_proj.keep_inputs("o_proj", rows, shard.group)

    def forward(self, x: torch.Tensor, lengths: Sequence[int], angles: Angles | None = None) -> torch.Tensor:
        """x [num_tokens, hidden_size], of sources of these `lengths`, -> the same shape; `angles` for `rotary`."""
        stacked = self.qkv_proj.forward(x).view(len(x), 3, -1, self._head_dim)
        if self._rotary is not None and angles is not None:
            query, key = (self._rotary.forward(stacked[:, part], angles) for part in range(2))
            stacked = torch.stack((query, key, stacked[:, 2]), 1)
        runs = [(length, len(list(run))) for length, run in groupby(lengths)]
        parts = torch.split(stacked, [length * count for length, count in runs])
        attended = [
            self._attend(part.view(-1, length, *part.shape[1:])) for part, (length, _) in zip(parts, runs, strict=True)
        ]
        return self.o_proj.forward(torch.cat(attended))

    def _attend(self, sources: torch.Tensor) -> torch.Tensor:
        """Sources [num_sources, length, 3, num_heads, head_dim] -> [num_sources x length, num_heads x head_dim]."""
        query, key, value = sources.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=self._bias(sources), scale=self._scale)
        return attended.transpose(1, 2).flatten(2).flatten(0, 1)

    def _bias(self, sources: torch.Tensor) -> torch.Tensor | None:
        """Return what is added to the scores, by query and key."""
        length = sources.shape[1]
        bias = None if self._position_bias is None else self._position_bias.matrix(length).to(sources.dtype)
        if self._window is None or length <= self._window + 1:
            return bias
        positions = torch.arange(length, device=sources.device)
        is_far = (positions[:, None] - positions).abs() > self._window
        return torch.zeros_like(is_far, dtype=sources.dtype).masked_fill(is_far, float("-inf")) + (
            0 if bias is None else bias
        )
