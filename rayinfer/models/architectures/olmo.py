"""OLMo 2 and 3 (OLMo team 2024, 2025): norms behind attention and feed-forward, and over all heads at once."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rayinfer.attention.paged_attention import AttentionBatch
from rayinfer.layers.decoder_layer import DecoderLayer
from rayinfer.layers.gated_mlp import GatedMLP
from rayinfer.layers.norms import RMSNorm
from rayinfer.layers.rotary_embedding import Angles, RotaryEmbedding
from rayinfer.layers.self_attention import SelfAttention
from rayinfer.layers.shards import ShardSlice, scaled, shard_heads
from rayinfer.models.architectures.llama_layers import gated_mlp
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.config_fields import count
from rayinfer.models.model_config import ModelConfig
from rayinfer.models.rope_settings import read_rope
from rayinfer.models.sliding_windows import GLOBAL, SLIDING, layer_kinds
from rayinfer.tensor_parallel import RankCoordinates, Shard

_OLMO_3_THETA = 500_000.0


class WideNormAttention(SelfAttention):
    """Attention with one norm over all heads of queries and one over all heads of keys.

    Ranks that share the heads add up their sums of squares.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        eps: float,
        rotary: RotaryEmbedding,
        window: int | None = None,
        has_biases: bool = False,
    ) -> None:
        super().__init__(
            *(hidden_size, num_heads, num_kv_heads, head_dim),
            rotary=rotary,
            window=window,
            qkv_bias=has_biases,
            output_bias=has_biases,
            query_norm=RMSNorm(num_heads * head_dim, eps),
            key_norm=RMSNorm(num_kv_heads * head_dim, eps),
        )
        self._eps = eps
        self._width, self._kv_width = num_heads * head_dim, num_kv_heads * head_dim  # of all ranks together
        self._shard: Shard | None = None
        self._counts_keys = True  # whether no rank before this one has the same heads of keys

    def take_shard(self, shard: Shard) -> Mapping[str, ShardSlice]:
        """See Shardable: a rank's part of the norms is that of its heads."""
        heads = shard_heads(self.num_heads, self.num_kv_heads, shard.coordinates)
        if shard.group.size > 1:
            self._shard = shard
            before = [RankCoordinates(rank, shard.group.size) for rank in range(shard.group.rank)]
            owned = [shard_heads(self.num_heads, self.num_kv_heads, rank).key_value for rank in before]
            self._counts_keys = heads.key_value not in owned
        norms = {
            "q_norm.weight": ShardSlice(0, (scaled(heads.query, self.head_dim),)),
            "k_norm.weight": ShardSlice(0, (scaled(heads.key_value, self.head_dim),)),
        }
        return {**super().take_shard(shard), **norms}

    def normalize(self, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See SelfAttention."""
        assert isinstance(self.q_norm, RMSNorm)
        assert isinstance(self.k_norm, RMSNorm)
        if self._shard is None:
            normed = self.q_norm.forward(query.flatten(1)), self.k_norm.forward(key.flatten(1))
            return normed[0].view(query.shape), normed[1].view(key.shape)
        wide_query, wide_key = (x.to(torch.float32, copy=True).flatten(1) for x in (query, key))
        squares = torch.stack((wide_query.square().sum(-1), wide_key.square().sum(-1)), -1)
        if not self._counts_keys:
            squares[:, 1] = 0
        squares = self._shard.group.all_reduce(squares)
        wide_query *= torch.rsqrt(squares[:, :1] / self._width + self._eps) * self.q_norm.weight
        wide_key *= torch.rsqrt(squares[:, 1:] / self._kv_width + self._eps) * self.k_norm.weight
        return wide_query.to(query.dtype).view(query.shape), wide_key.to(key.dtype).view(key.shape)


class PostNormLayer(DecoderLayer):
    """Attention and feed-forward of the sum itself; what they give goes through a norm before it is added."""

    def __init__(self, attention: SelfAttention, feed_forward: GatedMLP, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.self_attn, self.mlp = attention, feed_forward
        self.post_attention_layernorm = RMSNorm(hidden_size, eps)
        self.post_feedforward_layernorm = RMSNorm(hidden_size, eps)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor, angles: Angles | None, batch: AttentionBatch
    ) -> torch.Tensor:
        """See DecoderLayer."""
        x = self.post_attention_layernorm.forward(self.self_attn.forward(residual.add_(x), angles, batch))
        return self.post_feedforward_layernorm.forward(self.mlp.forward(residual.add_(x)))


class Olmo2ForCausalLM(CausalDecoder):
    """Every token sees all before it."""

    def __init__(self, config: ModelConfig) -> None:
        rotary = RotaryEmbedding(config.head_dim, config.max_position_embeddings, config.rope)
        rotaries = [rotary] * config.num_layers
        layers = _layers(config, rotaries, [None] * config.num_layers)
        super().__init__(config, layers, RMSNorm(config.hidden_size, config.rms_norm_eps), rotaries)


class Olmo3ForCausalLM(CausalDecoder):
    """Most layers see a sliding window; every fourth sees all, and only there rotary positions are scaled."""

    def __init__(self, config: ModelConfig) -> None:
        kinds = layer_kinds(config) or [GLOBAL if (i + 1) % 4 == 0 else SLIDING for i in range(config.num_layers)]
        by_kind = {kind: _olmo_3_rotary(config, kind) for kind in (SLIDING, GLOBAL)}
        rotaries = [by_kind[kind] for kind in kinds]
        window = count(config.raw, "sliding_window", default=4096)
        layers = _layers(config, rotaries, [window if kind == SLIDING else None for kind in kinds])
        super().__init__(config, layers, RMSNorm(config.hidden_size, config.rms_norm_eps), rotaries)


def _layers(
    config: ModelConfig, rotaries: Sequence[RotaryEmbedding], windows: Sequence[int | None]
) -> list[PostNormLayer]:
    eps = config.rms_norm_eps
    return [
        PostNormLayer(
            WideNormAttention(
                *(config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim),
                eps=eps,
                rotary=rotary,
                window=window,
                has_biases=config.attention_bias,
            ),
            gated_mlp(config),
            *(config.hidden_size, eps),
        )
        for rotary, window in zip(rotaries, windows, strict=True)
    ]


def _olmo_3_rotary(config: ModelConfig, kind: str) -> RotaryEmbedding:
    """Older configs have one `rope_scaling`, for the layers that see all."""
    raw: dict[str, Any] = {"rope_theta": _OLMO_3_THETA, **config.raw}
    if kind == SLIDING:
        raw["rope_scaling"] = None
    return RotaryEmbedding(
        config.head_dim, config.max_position_embeddings, read_rope(raw, config.head_dim, layer_type=kind)
    )
