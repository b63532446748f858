"""GPT-NeoX (Black et al. 2022) and Pythia: attention and feed-forward side by side, partly rotated heads."""

from collections.abc import Mapping
from typing import Any

import torch

from rayinfer.attention.paged_attention import AttentionBatch
from rayinfer.layers.checkpoint_slices import CheckpointSlice, with_checkpoint_names
from rayinfer.layers.decoder_layer import PreNormLayer
from rayinfer.layers.feed_forward import FeedForward
from rayinfer.layers.norms import LayerNorm
from rayinfer.layers.rotary_embedding import Angles, RotaryEmbedding
from rayinfer.layers.self_attention import Heads, SelfAttention
from rayinfer.layers.shards import HeadShard, scaled
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.config_fields import flag, number
from rayinfer.models.model_config import ModelConfig
from rayinfer.models.rope_settings import read_rope

_CHECKPOINT_NAMES = {
    "model.embed_tokens": "gpt_neox.embed_in",
    "model.layers": "gpt_neox.layers",
    "model.norm": "gpt_neox.final_layer_norm",
    "self_attn.qkv_proj": "attention.query_key_value",
    "self_attn.o_proj": "attention.dense",
    "mlp.up_proj": "mlp.dense_h_to_4h",
    "mlp.down_proj": "mlp.dense_4h_to_h",
    "lm_head": "embed_out",
}
_CAUSAL_MASKS = (".attention.bias", ".attention.masked_bias")


class InterleavedSelfAttention(SelfAttention):
    """Attention whose projection gives each head its query, key and value side by side."""

    def split_heads(self, stacked: torch.Tensor) -> Heads:
        """Stacked [num_tokens, num_heads x 3 x head_dim] -> three times [num_tokens, num_heads, head_dim]."""
        return Heads(*stacked.view(len(stacked), -1, 3, self.head_dim).unbind(2))

    def _projected_rows(self, heads: HeadShard) -> list[range]:
        return [scaled(heads.query, 3 * self.head_dim)]


class ParallelLayer(PreNormLayer):
    """Attention and feed-forward of the same input, each behind its own norm."""

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor, angles: Angles | None, batch: AttentionBatch
    ) -> torch.Tensor:
        """See DecoderLayer."""
        attended: torch.Tensor = self.self_attn.forward(self.input_layernorm.forward(x, residual), angles, batch)
        fed_forward: torch.Tensor = self.mlp.forward(self.post_attention_layernorm.forward(residual))
        return fed_forward + attended


class GPTNeoXForCausalLM(CausalDecoder):
    """As many heads of keys as of queries, layer norms, a plain feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        rotary = RotaryEmbedding(config.head_dim, config.max_position_embeddings, _rope(config))
        layers = [_layer(config, rotary) for _ in range(config.num_layers)]
        super().__init__(config, layers, _norm(config), [rotary] * config.num_layers)

    def checkpoint_slices(self) -> Mapping[str, CheckpointSlice]:
        """See Decoder."""
        return with_checkpoint_names(_CHECKPOINT_NAMES, super().checkpoint_slices())

    def known_name(self, tensor_name: str) -> str | None:
        """Old checkpoints carry causal masks; newer transformers name the head as other families do."""
        if tensor_name.endswith(_CAUSAL_MASKS):
            return None
        if tensor_name in ("lm_head.weight", "embed_out.weight"):
            return None if self.lm_head is None else "embed_out.weight"
        return super().known_name(tensor_name)


def _layer(config: ModelConfig, rotary: RotaryEmbedding) -> PreNormLayer:
    activation = config.raw.get("hidden_act") or "gelu"
    has_bias = flag(config.raw, "attention_bias", default=True)
    layer = ParallelLayer if flag(config.raw, "use_parallel_residual", default=True) else PreNormLayer
    return layer(
        attention=InterleavedSelfAttention(
            *(config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim),
            rotary=rotary,
            qkv_bias=has_bias,
            output_bias=has_bias,
            is_fused=True,
        ),
        feed_forward=FeedForward(config.hidden_size, config.intermediate_size, activation),
        attention_norm=_norm(config),
        feed_forward_norm=_norm(config),
    )


def _norm(config: ModelConfig) -> LayerNorm:
    return LayerNorm(config.hidden_size, number(config.raw, "layer_norm_eps", default=1e-5))


def _rope(config: ModelConfig) -> dict[str, Any]:
    """Read the base and the fraction of rotated channels, which older checkpoints name differently."""
    raw = config.raw
    own_words = {
        "rope_theta": number(raw, "rotary_emb_base", default=10_000.0),
        "partial_rotary_factor": number(raw, "rotary_pct", default=0.25),
    }
    return read_rope({**raw, **own_words}, config.head_dim)
