"""ModernBERT (Warner et al. 2024): rotary positions, gated feed-forward, norms first, and windows in most layers."""

import torch

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.layers.encoder_attention import EncoderAttention
from rayinfer.layers.feed_forward import GatedFeedForward, find_activation
from rayinfer.layers.norms import LayerNorm
from rayinfer.layers.residual import PreNorm
from rayinfer.layers.rotary_embedding import RotaryEmbedding
from rayinfer.models.config_fields import count, flag
from rayinfer.models.encoder_decoder import EncoderLayer
from rayinfer.models.encoders.encoder import Encoder
from rayinfer.models.encoders.encoder_config import EncoderConfig
from rayinfer.models.encoders.heads import Head
from rayinfer.models.rope_settings import read_rope

FULL, SLIDING = "full_attention", "sliding_attention"
_THETA = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}
_NAMES = {
    "embed_tokens.": "embeddings.tok_embeddings.",
    "embed_norm.": "embeddings.norm.",
    "self_attn.inner.qkv_proj.": "attn.Wqkv.",
    "self_attn.inner.o_proj.": "attn.Wo.",
    "self_attn.norm.": "attn_norm.",
    "mlp.inner.gate_up_proj.": "mlp.Wi.",
    "mlp.inner.down_proj.": "mlp.Wo.",
    "mlp.norm.": "mlp_norm.",
    "head.out.": "classifier.",
}


def build_modern_bert(config: EncoderConfig) -> Encoder:
    """Build a ModernBERT."""
    types = _layer_types(config)
    rotaries = {kind: _rotary(config, kind) for kind in sorted(set(types))}
    layers = [_layer(config, kind, rotaries[kind], is_first=index == 0) for index, kind in enumerate(types)]
    return Encoder(
        config,
        layers,
        names=_NAMES,
        prefix="model",
        head=_head(config),
        embed_norm=_norm(config),
        final_norm=_norm(config),
        rotaries=[rotaries[kind] for kind in types],
    )


def _layer_types(config: EncoderConfig) -> list[str]:
    types = config.raw.get("layer_types")
    if types is None:
        every = count(config.raw, "global_attn_every_n_layers", default=3)
        types = [SLIDING if index % every else FULL for index in range(config.num_layers)]
    if not isinstance(types, list) or len(types) != config.num_layers or not {*types} <= {FULL, SLIDING}:
        raise ValueError(f"layer_types must name {FULL} or {SLIDING} for each layer, got {types!r:.80}")
    return types


def _rotary(config: EncoderConfig, kind: str) -> RotaryEmbedding:
    """Older checkpoints have a base for each kind of layer, newer ones all settings."""
    name, default = _THETA[kind]
    raw = {**config.raw, "rope_theta": config.raw.get(name, default)}
    return RotaryEmbedding(config.head_dim, config.num_positions, read_rope(raw, config.head_dim, layer_type=kind))


def _layer(config: EncoderConfig, kind: str, rotary: RotaryEmbedding, *, is_first: bool) -> EncoderLayer:
    raw = config.raw
    attention = EncoderAttention(
        *(config.hidden_size, config.num_heads, config.head_dim),
        bias=flag(raw, "attention_bias"),
        rotary=rotary,
        window=count(raw, "local_attention", default=128) // 2 if kind == SLIDING else None,
        is_fused=True,
    )
    bias = flag(raw, "mlp_bias")
    feed_forward = GatedFeedForward(config.hidden_size, config.intermediate_size, config.hidden_act, bias=bias)
    first_norm = torch.nn.Identity() if is_first else _norm(config)  # the embeddings have had theirs
    return EncoderLayer(PreNorm(attention, first_norm), PreNorm(feed_forward, _norm(config)))


def _norm(config: EncoderConfig) -> LayerNorm:
    return LayerNorm(config.hidden_size, config.norm_eps, bias=flag(config.raw, "norm_bias"))


def _head(config: EncoderConfig) -> Head | None:
    raw, kind = config.raw, config.architecture.head
    if kind == "none":
        return None
    pooling = raw.get("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise UnsupportedArchitecture(f"classifier_pooling {pooling!r} is not supported, only cls and mean")
    return Head(
        *(config.hidden_size, len(config.labels), pooling if kind == "classify" else None),
        activation=find_activation(str(raw.get("classifier_activation", "gelu"))),
        dense_bias=flag(raw, "classifier_bias"),
        norm=_norm(config),
    )
