"""Phi-3, Phi-3.5 and Phi-4-mini (Abdin et al. 2024): Llama with fused projections, longrope and a window."""

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.layers.norms import RMSNorm
from rayinfer.layers.rotary_embedding import RotaryEmbedding
from rayinfer.models.architectures.llama_layers import llama_layers
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.config_fields import count
from rayinfer.models.model_config import ModelConfig
from rayinfer.models.sliding_windows import same_window_everywhere

_ROPE_TYPES = ("default", "longrope")


class Phi3ForCausalLM(CausalDecoder):
    """The context it was trained on first is 4,096 tokens unless the config names another."""

    def __init__(self, config: ModelConfig) -> None:
        if (rope_type := config.rope["rope_type"]) not in _ROPE_TYPES:
            raise UnsupportedArchitecture(f"rope_type {rope_type!r} is not supported, only {', '.join(_ROPE_TYPES)}")
        original = count(config.raw, "original_max_position_embeddings", default=4096)
        rope = {**config.rope, "original_max_position_embeddings": original}
        rotary = RotaryEmbedding(config.head_dim, config.max_position_embeddings, rope)
        layers = llama_layers(config, rotary, windows=same_window_everywhere(config), is_fused=True)
        norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        super().__init__(config, layers, norm, [rotary] * config.num_layers)
