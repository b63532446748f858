"""Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with biases on queries, keys and values, and windows in some layers."""

from rayinfer.layers.norms import RMSNorm
from rayinfer.layers.rotary_embedding import RotaryEmbedding
from rayinfer.models.architectures.llama_layers import llama_layers
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.model_config import ModelConfig
from rayinfer.models.sliding_windows import windows_by_layer


class Qwen2ForCausalLM(CausalDecoder):
    """The biases are always there: no field of the config names them."""

    def __init__(self, config: ModelConfig) -> None:
        rotary = RotaryEmbedding(config.head_dim, config.max_position_embeddings, config.rope)
        layers = llama_layers(config, rotary, windows=windows_by_layer(config), qkv_bias=True)
        norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        super().__init__(config, layers, norm, [rotary] * config.num_layers)
