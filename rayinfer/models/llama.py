"""Llama (Touvron et al. 2023) and whatever shares its architecture, SmolLM2 among them."""

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.layers.rms_norm import RMSNorm
from rayinfer.layers.rotary_embedding import ROPE_TYPES, RotaryEmbedding
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.llama_layers import llama_layers
from rayinfer.models.model_config import ModelConfig


class LlamaForCausalLM(CausalDecoder):
    """Rotary positions, grouped queries, a gated feed-forward, norms before both."""

    def __init__(self, config: ModelConfig) -> None:
        if (rope_type := config.rope.get("rope_type")) not in ROPE_TYPES:
            raise UnsupportedArchitecture(f"rope_type {rope_type!r} is not supported, only {', '.join(ROPE_TYPES)}")
        rotary = RotaryEmbedding(config.head_dim, config.max_position_embeddings, config.rope)
        layers = llama_layers(config, rotary, qkv_bias=config.attention_bias, output_bias=config.attention_bias)
        norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        super().__init__(config, layers, norm, [rotary] * config.num_layers)
