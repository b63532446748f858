"""GPT-2 (Radford et al. 2019): learned positions, layer norms, a plain feed-forward."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from rayinfer.attention.paged_attention import AttentionBatch
from rayinfer.errors import UnsupportedArchitecture
from rayinfer.layers.checkpoint_slices import CheckpointSlice, with_checkpoint_names
from rayinfer.layers.decoder_layer import PreNormLayer
from rayinfer.layers.embedding import PositionEmbedding
from rayinfer.layers.feed_forward import FeedForward
from rayinfer.layers.norms import LayerNorm
from rayinfer.layers.self_attention import SelfAttention
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.config_fields import flag, number
from rayinfer.models.model_config import ModelConfig

_PREFIX = "transformer."
_CHECKPOINT_NAMES = {
    "model.embed_tokens": "transformer.wte",
    "model.position_embedding": "transformer.wpe",
    "model.layers": "transformer.h",
    "model.norm": "transformer.ln_f",
    "input_layernorm": "ln_1",
    "self_attn.qkv_proj": "attn.c_attn",
    "self_attn.o_proj": "attn.c_proj",
    "post_attention_layernorm": "ln_2",
    "mlp.up_proj": "mlp.c_fc",
    "mlp.down_proj": "mlp.c_proj",
}
_TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
_CAUSAL_MASKS = (".attn.bias", ".attn.masked_bias")


class GPT2LMHeadModel(CausalDecoder):
    """As many heads of keys as of queries, biases everywhere; the head is the embedding unless untied."""

    def __init__(self, config: ModelConfig) -> None:
        if flag(config.raw, "add_cross_attention"):
            raise UnsupportedArchitecture("add_cross_attention is not supported: there is no encoder to attend to")
        config = replace(config, tie_word_embeddings=flag(config.raw, "tie_word_embeddings", default=True))
        layers = [_layer(config, index) for index in range(config.num_layers)]
        super().__init__(config, layers, _norm(config), [None] * config.num_layers)
        positions = PositionEmbedding(config.max_position_embeddings, config.hidden_size)
        self.model.position_embedding = self._position_embedding = positions

    def checkpoint_slices(self) -> Mapping[str, CheckpointSlice]:
        """Its checkpoints hold what they call Conv1D transposed."""
        slices = with_checkpoint_names(_CHECKPOINT_NAMES, super().checkpoint_slices())
        return {name: replace(part, is_transposed=name.endswith(_TRANSPOSED)) for name, part in slices.items()}

    def known_name(self, tensor_name: str) -> str | None:
        """The first checkpoints leave the prefix out; old ones carry causal masks."""
        if tensor_name.endswith(_CAUSAL_MASKS):
            return None
        has_prefix = tensor_name.startswith((_PREFIX, "lm_head."))
        return super().known_name(tensor_name if has_prefix else _PREFIX + tensor_name)

    def embed(self, token_ids: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        """token_ids [num_tokens] -> [num_tokens, hidden_size]."""
        return super().embed(token_ids, batch) + self._position_embedding.forward(batch.positions)


def _layer(config: ModelConfig, index: int) -> PreNormLayer:
    activation = config.raw.get("activation_function") or "gelu_new"
    return PreNormLayer(
        attention=SelfAttention(
            *(config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim),
            rotary=None,
            qkv_bias=True,
            output_bias=True,
            scale=_attention_scale(config, index),
            is_fused=True,
        ),
        feed_forward=FeedForward(config.hidden_size, config.intermediate_size, activation),
        attention_norm=_norm(config),
        feed_forward_norm=_norm(config),
    )


def _attention_scale(config: ModelConfig, index: int) -> float:
    scale = config.head_dim**-0.5 if flag(config.raw, "scale_attn_weights", default=True) else 1.0
    return scale / (index + 1) if flag(config.raw, "scale_attn_by_inverse_layer_idx") else scale


def _norm(config: ModelConfig) -> LayerNorm:
    return LayerNorm(config.hidden_size, number(config.raw, "layer_norm_epsilon", default=1e-5))
