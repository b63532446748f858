"""Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with biases on queries, keys and values, and windows in some layers.

Qwen2-VL and Qwen2.5-VL (Wang et al. 2024, Bai et al. 2025) have such a language model; tokens have three positions.
Embeddings of images take the places of a marker's; `rayinfer.models.vision` computes them.
"""

import torch

from rayinfer.layers.norms import RMSNorm
from rayinfer.layers.rotary_embedding import MultimodalRotaryEmbedding, RotaryEmbedding
from rayinfer.models.architectures.llama_layers import llama_layers
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.model_config import ModelConfig
from rayinfer.models.sliding_windows import windows_by_layer

_TEXT_PREFIX = "model.language_model."
_IMAGE_PARTS = ("visual.", "model.visual.")


class Qwen2ForCausalLM(CausalDecoder):
    """The biases are always there: no field of the config names them."""

    def __init__(self, config: ModelConfig) -> None:
        rotary = RotaryEmbedding(config.head_dim, config.max_position_embeddings, config.rope)
        layers = llama_layers(config, rotary, windows=windows_by_layer(config), qkv_bias=True)
        norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        super().__init__(config, layers, norm, [rotary] * config.num_layers)


class Qwen2VLForConditionalGeneration(CausalDecoder):
    """The text half of the checkpoint; its tensors for images are read elsewhere."""

    def __init__(self, config: ModelConfig) -> None:
        rotary = MultimodalRotaryEmbedding(config.head_dim, config.max_position_embeddings, config.rope)
        layers = llama_layers(config, rotary, windows=windows_by_layer(config), qkv_bias=True)
        norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        super().__init__(config, layers, norm, [rotary] * config.num_layers)
        self._rotary = rotary

    def known_name(self, tensor_name: str) -> str | None:
        """Rename the tensors of the text half as Qwen2's; None for those of the vision half."""
        if tensor_name.startswith(_IMAGE_PARTS):
            return None
        if tensor_name.startswith(_TEXT_PREFIX):
            tensor_name = "model." + tensor_name.removeprefix(_TEXT_PREFIX)
        return super().known_name(tensor_name)

    @property
    def num_positions(self) -> int:
        """See CausalDecoder."""
        return self._rotary.num_positions

    def reserve_positions(self, num_tokens: int) -> None:
        """See CausalDecoder."""
        self._rotary.reserve(num_tokens)

    def fill_positions(self, positions: torch.Tensor) -> None:
        """See CausalDecoder."""
        self._rotary.fill(positions)
