"""Qwen3-MoE (Yang et al. 2025): Qwen3's layers, most of them with a mixture of experts."""

from collections.abc import Callable
from functools import partial

import torch

from rayinfer.layers.norms import RMSNorm
from rayinfer.layers.rotary_embedding import RotaryEmbedding
from rayinfer.models.architectures.expert_layers import mixture_of_experts
from rayinfer.models.architectures.llama_layers import gated_mlp, llama_layers
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.config_fields import count, flag
from rayinfer.models.model_config import ModelConfig
from rayinfer.models.sliding_windows import same_window_everywhere


class Qwen3MoeForCausalLM(CausalDecoder):
    """Rotary positions, grouped queries with a norm over each head, and experts or a dense feed-forward per layer."""

    def __init__(self, config: ModelConfig) -> None:
        is_windowed = flag(config.raw, "use_sliding_window")
        rotary = RotaryEmbedding(config.head_dim, config.max_position_embeddings, config.rope)
        layers = llama_layers(
            config,
            rotary,
            windows=same_window_everywhere(config, default=4096) if is_windowed else None,
            qkv_bias=config.attention_bias,
            output_bias=config.attention_bias,
            has_head_norms=True,
            feed_forward=_feed_forward(config),
        )
        norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        super().__init__(config, layers, norm, [rotary] * config.num_layers)


def _feed_forward(config: ModelConfig) -> Callable[[int], torch.nn.Module]:
    """Every `decoder_sparse_step`th layer has experts, except those that `mlp_only_layers` lists."""
    dense_layers, step = config.raw.get("mlp_only_layers") or [], count(config.raw, "decoder_sparse_step", default=1)
    if not isinstance(dense_layers, list):
        raise ValueError(f"mlp_only_layers must be a list of layers, got {dense_layers!r}")
    experts = partial(
        mixture_of_experts,
        config,
        count(config.raw, "moe_intermediate_size"),
        renormalize=flag(config.raw, "norm_topk_prob"),
    )

    def build(index: int) -> torch.nn.Module:
        return gated_mlp(config) if index in dense_layers or (index + 1) % step else experts()

    return build
