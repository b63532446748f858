"""Nomic's BERT (Nussbaum et al. 2024): BERT with rotary positions and a gated feed-forward, without biases."""

import torch

from rayinfer.layers.encoder_attention import EncoderAttention
from rayinfer.layers.gated_mlp import GatedMLP
from rayinfer.layers.norms import LayerNorm
from rayinfer.layers.residual import PostNorm
from rayinfer.layers.rotary_embedding import RotaryEmbedding
from rayinfer.models.encoder_decoder import EncoderLayer
from rayinfer.models.encoders.encoder import Encoder
from rayinfer.models.encoders.encoder_config import EncoderConfig
from rayinfer.models.encoders.heads import Head
from rayinfer.models.rope_settings import read_rope

DEFAULT_THETA = 1000.0
_NAMES = {
    "embed_tokens.": "embeddings.word_embeddings.",
    "embed_types.": "embeddings.token_type_embeddings.",
    "embed_norm.": "emb_ln.",
    "layers.": "encoder.layers.",
    "self_attn.inner.qkv_proj.": "attn.Wqkv.",
    "self_attn.inner.o_proj.": "attn.out_proj.",
    "self_attn.norm.": "norm1.",
    "mlp.inner.up_proj.": "mlp.fc11.",
    "mlp.inner.gate_proj.": "mlp.fc12.",
    "mlp.inner.down_proj.": "mlp.fc2.",
    "mlp.norm.": "norm2.",
    "head.dense.": "pooler.dense.",
    "head.out.": "classifier.",
}


def build_nomic_bert(config: EncoderConfig) -> Encoder:
    """Build a NomicBert."""
    rope = read_rope({"rope_theta": DEFAULT_THETA, **config.raw}, config.head_dim)
    rotary = RotaryEmbedding(config.head_dim, config.num_positions, rope)
    return Encoder(
        config,
        [_layer(config, rotary) for _ in range(config.num_layers)],
        names=_NAMES,
        prefix="nomic_bert",
        head=_head(config),
        embed_norm=LayerNorm(config.hidden_size, config.norm_eps),
        rotaries=[rotary] * config.num_layers,
    )


def _layer(config: EncoderConfig, rotary: RotaryEmbedding) -> EncoderLayer:
    hidden_size, eps = config.hidden_size, config.norm_eps
    attention = EncoderAttention(hidden_size, config.num_heads, config.head_dim, rotary=rotary, is_fused=True)
    feed_forward = GatedMLP(hidden_size, config.intermediate_size, activation=config.hidden_act)
    return EncoderLayer(
        PostNorm(attention, LayerNorm(hidden_size, eps)), PostNorm(feed_forward, LayerNorm(hidden_size, eps))
    )


def _head(config: EncoderConfig) -> Head | None:
    kind, size = config.architecture.head, (config.hidden_size, len(config.labels))
    if kind == "none":
        return None
    return Head(*size, None) if kind == "token_classify" else Head(*size, "cls", activation=torch.tanh)
