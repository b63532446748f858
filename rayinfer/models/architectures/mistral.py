"""Mistral (Jiang et al. 2023): Llama with a sliding window."""

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.layers.norms import RMSNorm
from rayinfer.layers.rotary_embedding import RotaryEmbedding
from rayinfer.models.architectures.llama_layers import llama_layers
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.model_config import ModelConfig
from rayinfer.models.sliding_windows import same_window_everywhere


class MistralForCausalLM(CausalDecoder):
    """Each token sees the last `sliding_window` tokens of the layer below, or all where that is null."""

    def __init__(self, config: ModelConfig) -> None:
        if config.raw.get("layer_types") is not None:
            raise UnsupportedArchitecture("layer_types is not supported: all layers of a Mistral have one window")
        rotary = RotaryEmbedding(config.head_dim, config.max_position_embeddings, config.rope)
        layers = llama_layers(config, rotary, windows=same_window_everywhere(config, default=4096))
        norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        super().__init__(config, layers, norm, [rotary] * config.num_layers)
