"""Llama (Touvron et al. 2023) and whatever shares its architecture, SmolLM2 among them."""

from rayinfer.layers.norms import RMSNorm
from rayinfer.layers.rotary_embedding import RotaryEmbedding
from rayinfer.models.architectures.llama_layers import llama_layers
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.model_config import ModelConfig


class LlamaForCausalLM(CausalDecoder):
    """Rotary positions, grouped queries, a gated feed-forward, norms before both."""

    def __init__(self, config: ModelConfig) -> None:
        rotary = RotaryEmbedding(config.head_dim, config.max_position_embeddings, config.rope)
        layers = llama_layers(config, rotary, qkv_bias=config.attention_bias, output_bias=config.attention_bias)
        norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        super().__init__(config, layers, norm, [rotary] * config.num_layers)
