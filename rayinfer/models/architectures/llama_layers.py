"""The layers that Llama and its descendants share, with their differences as options."""

from collections.abc import Callable, Sequence

import torch

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.layers.decoder_layer import PreNormLayer
from rayinfer.layers.gated_mlp import GATES, GatedMLP
from rayinfer.layers.norms import RMSNorm
from rayinfer.layers.rotary_embedding import RotaryEmbedding
from rayinfer.layers.self_attention import SelfAttention
from rayinfer.models.model_config import ModelConfig


def llama_layers(
    config: ModelConfig,
    rotary: RotaryEmbedding,
    *,
    windows: Sequence[int | None] | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    has_head_norms: bool = False,
    rotates: Sequence[bool] | None = None,
    scale: float | None = None,
    has_sinks: bool = False,
    is_fused: bool = False,
    attention: type[SelfAttention] = SelfAttention,
    feed_forward: Callable[[int], torch.nn.Module] | None = None,
) -> list[PreNormLayer]:
    """Stack rotary attention and a gated feed-forward, each behind an RMS norm.

    `windows` gives each layer's (None: it sees all), `feed_forward` builds a layer's other half from its index.
    `has_head_norms` puts a norm over each head of queries and keys; `rotates` says which layers have rotary positions
    (None: all); `scale` multiplies scores instead of head_dim**-0.5; `has_sinks` gives each head the score of one more
    token; `is_fused` describes the checkpoint's tensors; `attention` is the class of all attentions.
    """

    def norm(width: int) -> RMSNorm:
        return RMSNorm(width, config.rms_norm_eps)

    return [
        PreNormLayer(
            attention=attention(
                *(config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim),
                rotary=rotary if rotates is None or rotates[index] else None,
                qkv_bias=qkv_bias,
                output_bias=output_bias,
                query_norm=norm(config.head_dim) if has_head_norms else None,
                key_norm=norm(config.head_dim) if has_head_norms else None,
                window=None if windows is None else windows[index],
                scale=scale,
                has_sinks=has_sinks,
                is_fused=is_fused,
            ),
            feed_forward=gated_mlp(config, is_fused=is_fused) if feed_forward is None else feed_forward(index),
            attention_norm=norm(config.hidden_size),
            feed_forward_norm=norm(config.hidden_size),
        )
        for index in range(config.num_layers)
    ]


def gated_mlp(config: ModelConfig, *, is_fused: bool = False) -> GatedMLP:
    """Build the feed-forward of the config's width; raises UnsupportedArchitecture for an unknown activation."""
    if config.hidden_act not in GATES:
        raise UnsupportedArchitecture(f"hidden_act {config.hidden_act!r} is not supported, only {', '.join(GATES)}")
    return GatedMLP(
        *(config.hidden_size, config.intermediate_size),
        activation=config.hidden_act,
        bias=config.mlp_bias,
        is_fused=is_fused,
    )
