"""Mistral (Jiang et al. 2023), Llama with a sliding window, and Ministral 3, whose queries grow with their position."""

import torch

from rayinfer.attention.paged_attention import AttentionBatch
from rayinfer.errors import UnsupportedArchitecture
from rayinfer.layers.norms import RMSNorm
from rayinfer.layers.rotary_embedding import RotaryEmbedding
from rayinfer.layers.self_attention import SelfAttention
from rayinfer.models.architectures.llama_layers import llama_layers
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.config_fields import number
from rayinfer.models.model_config import ModelConfig
from rayinfer.models.sliding_windows import same_window_everywhere
from rayinfer.models.text_part import name_in_language_model


class MistralForCausalLM(CausalDecoder):
    """Each token sees the last `sliding_window` tokens of the layer below, or all where that is null."""

    def __init__(self, config: ModelConfig) -> None:
        if config.raw.get("layer_types") is not None:
            raise UnsupportedArchitecture("layer_types is not supported: all layers of a Mistral have one window")
        rotary = RotaryEmbedding(config.head_dim, config.max_position_embeddings, config.rope)
        layers = llama_layers(config, rotary, windows=same_window_everywhere(config, default=4096))
        norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        super().__init__(config, layers, norm, [rotary] * config.num_layers)


class PositionScaledAttention(SelfAttention):
    """Attention whose queries are multiplied by 1 + beta ln(1 + floor(position / original length)), as in Llama 4."""

    _scales: torch.Tensor | None = None  # of each position [max_positions]; None: 1 everywhere

    def prepare(self, scales: torch.Tensor | None) -> None:
        """Set the scales of all positions [max_positions]; None for 1 everywhere."""
        self._scales = scales

    @property
    def is_plain(self) -> bool:
        """See SelfAttention."""
        return super().is_plain and self._scales is None

    def scale_queries(self, query: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        """See SelfAttention."""
        return query if self._scales is None else query * self._scales[batch.positions][:, None, None]


class Ministral3ForCausalLM(CausalDecoder):
    """Ministral 3 (Mistral AI 2025), the language model: Mistral's layers with yarn and scaled queries.

    Within the original length all scales are 1, and layers run as one operation. The language model of a
    Mistral3ForConditionalGeneration is this, or a Mistral, whose queries are not scaled.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._beta, self._original_length = _query_scaling(config)
        rotary = RotaryEmbedding(config.head_dim, config.max_position_embeddings, config.rope)
        layers = llama_layers(config, rotary, windows=same_window_everywhere(config), attention=PositionScaledAttention)
        norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        super().__init__(config, layers, norm, [rotary] * config.num_layers)

    def known_name(self, tensor_name: str) -> str | None:
        """Strip what checkpoints that read images, too, put before the names; their other parts are not used."""
        name = name_in_language_model(tensor_name)
        return None if name is None else super().known_name(name)

    def prepare(
        self, dtype: torch.dtype, device: torch.device, max_positions: int, longest_sequence: int | None = None
    ) -> None:
        """Compute the scales of queries, too, where a sequence may outgrow the original length; see Decoder."""
        scales = None
        if self._beta and (longest_sequence or max_positions) > self._original_length:
            rounds = torch.arange(max_positions, dtype=torch.float32).div(self._original_length).floor()
            scales = (1 + self._beta * torch.log1p(rounds)).to(device, dtype)
        for module in self.modules():
            if isinstance(module, PositionScaledAttention):
                module.prepare(scales)
        super().prepare(dtype, device, max_positions, longest_sequence)


def _query_scaling(config: ModelConfig) -> tuple[float, int]:
    """Read beta, 0 for none, and the length it counts in."""
    if not config.rope.get("llama_4_scaling_beta"):
        return 0.0, config.max_position_embeddings
    if "original_max_position_embeddings" not in config.rope:
        raise UnsupportedArchitecture("llama_4_scaling_beta needs original_max_position_embeddings beside it")
    return number(config.rope, "llama_4_scaling_beta"), int(config.rope["original_max_position_embeddings"])
