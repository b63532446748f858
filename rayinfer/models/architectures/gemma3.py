"""Gemma 3 (Gemma team 2025), the language model: most layers see a sliding window, every few see all."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from rayinfer.attention.paged_attention import AttentionBatch
from rayinfer.errors import UnsupportedArchitecture
from rayinfer.layers.decoder_layer import DecoderLayer
from rayinfer.layers.gated_mlp import GatedMLP
from rayinfer.layers.norms import RMSNorm
from rayinfer.layers.rotary_embedding import Angles, RotaryEmbedding
from rayinfer.layers.self_attention import SelfAttention
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.config_fields import RawConfig, count, flag, number
from rayinfer.models.model_config import ModelConfig
from rayinfer.models.rope_settings import read_rope
from rayinfer.models.sliding_windows import GLOBAL, SLIDING, layer_kinds
from rayinfer.models.text_part import name_in_language_model


class Gemma3Layer(DecoderLayer):
    """Attention and feed-forward, each between two norms."""

    def __init__(self, attention: SelfAttention, feed_forward: GatedMLP, norm: Callable[[], RMSNorm]) -> None:
        super().__init__()
        self.self_attn, self.mlp = attention, feed_forward
        self.input_layernorm, self.post_attention_layernorm = norm(), norm()
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = norm(), norm()

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor, angles: Angles | None, batch: AttentionBatch
    ) -> torch.Tensor:
        """See DecoderLayer."""
        x = self.self_attn.forward(self.input_layernorm.forward(x, residual), angles, batch)
        x = self.post_attention_layernorm.forward(x)
        x = self.mlp.forward(self.pre_feedforward_layernorm.forward(x, residual))
        return self.post_feedforward_layernorm.forward(x)


class Gemma3ForCausalLM(CausalDecoder):
    """Rotary positions of two speeds, norms on both sides of everything, scaled embeddings, maybe capped logits."""

    def __init__(self, config: ModelConfig) -> None:
        raw = config.raw
        if flag(raw, "use_bidirectional_attention"):
            raise UnsupportedArchitecture("use_bidirectional_attention is not supported: tokens see only those before")
        rotaries = {kind: _rotary(config, kind) for kind in (SLIDING, GLOBAL)}
        kinds = layer_kinds(config) or _kinds_by_pattern(config)
        layers = [_layer(config, rotaries[kind], is_sliding=kind == SLIDING) for kind in kinds]
        config = replace(config, tie_word_embeddings=flag(raw, "tie_word_embeddings", default=True))
        norm = RMSNorm(config.hidden_size, config.rms_norm_eps, unit_offset=True)
        super().__init__(config, layers, norm, [rotaries[kind] for kind in kinds])
        self._logit_cap = _optional_number(raw, "final_logit_softcapping")
        self._embedding_scale = math.sqrt(config.hidden_size)

    def known_name(self, tensor_name: str) -> str | None:
        """Strip what checkpoints that read images, too, put before the names; their other parts are not used."""
        name = name_in_language_model(tensor_name)
        return None if name is None else super().known_name(name)

    def prepare(
        self, dtype: torch.dtype, device: torch.device, max_positions: int, longest_sequence: int | None = None
    ) -> None:
        """Round the scale of the embeddings to `dtype`, as the model was trained: 25.3 is 25.25 in bfloat16."""
        super().prepare(dtype, device, max_positions, longest_sequence)
        self._embedding_scale = float(torch.tensor(math.sqrt(self.config.hidden_size)).to(dtype))

    def embed(self, token_ids: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        """token_ids [num_tokens] -> [num_tokens, hidden_size]."""
        return super().embed(token_ids, batch) * self._embedding_scale

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [num_rows, hidden_size] -> [num_rows, vocab_size]."""
        logits = super().logits(hidden)
        if self._logit_cap is None:
            return logits
        return logits.div_(self._logit_cap).tanh_().mul_(self._logit_cap)


def _layer(config: ModelConfig, rotary: RotaryEmbedding, *, is_sliding: bool) -> Gemma3Layer:
    raw = config.raw
    activation = raw.get("hidden_activation") or "gelu_pytorch_tanh"

    def norm(width: int = config.hidden_size) -> RMSNorm:
        return RMSNorm(width, config.rms_norm_eps, unit_offset=True)

    attention = SelfAttention(
        *(config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim),
        rotary=rotary,
        qkv_bias=config.attention_bias,
        output_bias=config.attention_bias,
        query_norm=norm(config.head_dim),
        key_norm=norm(config.head_dim),
        window=count(raw, "sliding_window", default=4096) if is_sliding else None,
        scale=number(raw, "query_pre_attn_scalar", default=256) ** -0.5,
        softcap=_optional_number(raw, "attn_logit_softcapping"),
    )
    return Gemma3Layer(attention, GatedMLP(config.hidden_size, config.intermediate_size, activation=activation), norm)


def _kinds_by_pattern(config: ModelConfig) -> list[str]:
    """Derive the kinds for older checkpoints: every `sliding_window_pattern`th layer is global."""
    pattern = count(config.raw, "sliding_window_pattern", default=6)
    return [SLIDING if (index + 1) % pattern else GLOBAL for index in range(config.num_layers)]


def _rotary(config: ModelConfig, kind: str) -> RotaryEmbedding:
    """Older checkpoints give the sliding layers' base in a field of its own and mean `rope_scaling` for the others."""
    if kind == GLOBAL:
        raw = {"rope_theta": 1_000_000.0, **config.raw}
    else:
        raw = {**config.raw, "rope_theta": config.raw.get("rope_local_base_freq", 10_000.0), "rope_scaling": None}
    rope = read_rope(raw, config.head_dim, layer_type=kind)
    return RotaryEmbedding(config.head_dim, config.max_position_embeddings, rope)


def _optional_number(raw: RawConfig, name: str) -> float | None:
    return None if raw.get(name) is None else number(raw, name)
