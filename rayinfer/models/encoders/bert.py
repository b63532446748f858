"""BERT (Devlin et al. 2018) and its descendants with learned positions and norms behind every part."""

from collections.abc import Mapping
from types import MappingProxyType

import torch

from rayinfer.layers.embedding import PositionEmbedding
from rayinfer.layers.encoder_attention import EncoderAttention
from rayinfer.layers.feed_forward import FeedForward
from rayinfer.layers.norms import LayerNorm
from rayinfer.layers.relative_position_bias import RelativePositionBias
from rayinfer.layers.residual import PostNorm
from rayinfer.models.config_fields import count
from rayinfer.models.encoder_decoder import EncoderLayer
from rayinfer.models.encoders.encoder import Encoder
from rayinfer.models.encoders.encoder_config import EncoderConfig
from rayinfer.models.encoders.heads import Head
from rayinfer.models.encoders.registry import Family

MPNET_MAX_DISTANCE = 128  # not in config.json

_EMBEDDINGS = {
    "embed_tokens.": "embeddings.word_embeddings.",
    "embed_positions.": "embeddings.position_embeddings.",
    "embed_types.": "embeddings.token_type_embeddings.",
    "embed_norm.": "embeddings.LayerNorm.",
}
_FEED_FORWARD = {
    "mlp.inner.up_proj.": "intermediate.dense.",
    "mlp.inner.down_proj.": "output.dense.",
    "mlp.norm.": "output.LayerNorm.",
}
_BERT_LAYERS = {
    "layers.": "encoder.layer.",
    "self_attn.inner.q_proj.": "attention.self.query.",
    "self_attn.inner.k_proj.": "attention.self.key.",
    "self_attn.inner.v_proj.": "attention.self.value.",
    "self_attn.inner.o_proj.": "attention.output.dense.",
    "self_attn.norm.": "attention.output.LayerNorm.",
    **_FEED_FORWARD,
}
_MPNET_LAYERS = {
    "position_bias.": "encoder.relative_attention_bias.",
    "layers.": "encoder.layer.",
    "self_attn.inner.q_proj.": "attention.attn.q.",
    "self_attn.inner.k_proj.": "attention.attn.k.",
    "self_attn.inner.v_proj.": "attention.attn.v.",
    "self_attn.inner.o_proj.": "attention.attn.o.",
    "self_attn.norm.": "attention.LayerNorm.",
    **_FEED_FORWARD,
}
_DISTILBERT_LAYERS = {
    "layers.": "transformer.layer.",
    "self_attn.inner.q_proj.": "attention.q_lin.",
    "self_attn.inner.k_proj.": "attention.k_lin.",
    "self_attn.inner.v_proj.": "attention.v_lin.",
    "self_attn.inner.o_proj.": "attention.out_lin.",
    "self_attn.norm.": "sa_layer_norm.",
    "mlp.inner.up_proj.": "ffn.lin1.",
    "mlp.inner.down_proj.": "ffn.lin2.",
    "mlp.norm.": "output_layer_norm.",
}
_POOLED_HEAD = {"head.dense.": "pooler.dense.", "head.out.": "classifier."}
_ROBERTA_HEAD = {"head.dense.": "classifier.dense.", "head.out.": "classifier.out_proj."}
_DISTILBERT_HEAD = {"head.dense.": "pre_classifier.", "head.out.": "classifier."}
_TOKEN_HEAD = {"head.out.": "classifier."}

_LAYER_NAMES: Mapping[Family, Mapping[str, str]] = MappingProxyType(
    {
        "bert": _BERT_LAYERS,
        "roberta": _BERT_LAYERS,
        "distilbert": _DISTILBERT_LAYERS,
        "mpnet": _MPNET_LAYERS,
    }
)
_HEAD_NAMES: Mapping[Family, Mapping[str, str]] = MappingProxyType(
    {"bert": _POOLED_HEAD, "roberta": _ROBERTA_HEAD, "distilbert": _DISTILBERT_HEAD, "mpnet": _ROBERTA_HEAD}
)


def build_bert(config: EncoderConfig) -> Encoder:
    """Build an encoder of the families bert, roberta, distilbert and mpnet."""
    family, head = config.architecture
    position_bias = None
    if family == "mpnet":
        num_buckets = count(config.raw, "relative_attention_num_buckets", default=32)
        position_bias = RelativePositionBias(config.num_heads, num_buckets, MPNET_MAX_DISTANCE, is_causal=False)
    head_names = _TOKEN_HEAD if head == "token_classify" else _HEAD_NAMES[family]
    return Encoder(
        config,
        [_layer(config, position_bias) for _ in range(config.num_layers)],
        names={**_EMBEDDINGS, **_LAYER_NAMES[family], **head_names},
        prefix=family,
        head=_head(config),
        embed_positions=PositionEmbedding(config.num_positions, config.hidden_size),
        embed_norm=LayerNorm(config.hidden_size, config.norm_eps),
        position_bias=position_bias,
    )


def _layer(config: EncoderConfig, position_bias: RelativePositionBias | None) -> EncoderLayer:
    hidden_size, eps = config.hidden_size, config.norm_eps
    heads = (hidden_size, config.num_heads, config.head_dim)
    attention = EncoderAttention(*heads, bias=True, position_bias=position_bias)
    feed_forward = FeedForward(hidden_size, config.intermediate_size, config.hidden_act)
    return EncoderLayer(
        PostNorm(attention, LayerNorm(hidden_size, eps)), PostNorm(feed_forward, LayerNorm(hidden_size, eps))
    )


def _head(config: EncoderConfig) -> Head | None:
    family, kind = config.architecture
    size = (config.hidden_size, len(config.labels))
    if kind == "none":
        return None
    if kind == "token_classify":
        return Head(*size, None)
    return Head(*size, "cls", activation=torch.relu if family == "distilbert" else torch.tanh)
