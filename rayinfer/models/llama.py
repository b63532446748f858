"""Llama (Touvron et al. 2023) and whatever shares its architecture, SmolLM2 among them."""

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.layers.decoder_layer import PreNormLayer
from rayinfer.layers.gated_mlp import GatedMLP
from rayinfer.layers.rms_norm import RMSNorm
from rayinfer.layers.rotary_embedding import ROPE_TYPES, RotaryEmbedding
from rayinfer.layers.self_attention import SelfAttention
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.model_config import ModelConfig


class LlamaForCausalLM(CausalDecoder):
    """Rotary positions, grouped queries, a gated feed-forward, norms before both."""

    def __init__(self, config: ModelConfig) -> None:
        if config.hidden_act != "silu":
            raise UnsupportedArchitecture(f"hidden_act {config.hidden_act!r} is not supported, only 'silu'")
        if (rope_type := config.rope.get("rope_type")) not in ROPE_TYPES:
            raise UnsupportedArchitecture(f"rope_type {rope_type!r} is not supported, only {', '.join(ROPE_TYPES)}")
        rotary = RotaryEmbedding(config.head_dim, config.max_position_embeddings, config.rope)
        layers = [
            PreNormLayer(
                attention=SelfAttention(
                    *(config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim),
                    rotary=rotary,
                    qkv_bias=config.attention_bias,
                    output_bias=config.attention_bias,
                ),
                feed_forward=GatedMLP(config.hidden_size, config.intermediate_size, bias=config.mlp_bias),
                attention_norm=RMSNorm(config.hidden_size, config.rms_norm_eps),
                feed_forward_norm=RMSNorm(config.hidden_size, config.rms_norm_eps),
            )
            for _ in range(config.num_layers)
        ]
        norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        super().__init__(config, layers, norm, [rotary] * config.num_layers)
