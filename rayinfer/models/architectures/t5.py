"""T5 (Raffel et al. 2020) and its version 1.1, which Flan-T5 has: relative positions, norms before every part."""

from collections.abc import Mapping

import torch

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.layers.checkpoint_slices import CheckpointSlice, with_checkpoint_names
from rayinfer.layers.cross_attention import CrossAttention
from rayinfer.layers.encoder_attention import EncoderAttention
from rayinfer.layers.feed_forward import ACTIVATIONS, FeedForward
from rayinfer.layers.gated_mlp import GATES, GatedMLP
from rayinfer.layers.norms import RMSNorm
from rayinfer.layers.relative_position_bias import RelativePositionBias
from rayinfer.layers.residual import PreNorm
from rayinfer.layers.self_attention import SelfAttention
from rayinfer.models.config_fields import count
from rayinfer.models.encoder_decoder import CrossDecoderLayer, EncoderDecoder, EncoderLayer
from rayinfer.models.model_config import ModelConfig

_WORDS = {
    "encoder_layers.": "encoder.block.",
    "decoder_layers.": "decoder.block.",
    "encoder_norm.": "encoder.final_layer_norm.",
    "decoder_norm.": "decoder.final_layer_norm.",
    "self_attn.inner.": "layer.0.SelfAttention.",
    "self_attn.norm.": "layer.0.layer_norm.",
    "cross_attn.inner.": "layer.1.EncDecAttention.",
    "cross_attn.norm.": "layer.1.layer_norm.",
    # All layers' own, kept in the first.
    "position_biases.0.": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.",
    "position_biases.1.": "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.",
    **{"q_proj.": "q.", "k_proj.": "k.", "v_proj.": "v.", "o_proj.": "o."},
    **{"gate_proj.": "wi_0.", "down_proj.": "wo."},
}


class T5ForConditionalGeneration(EncoderDecoder):
    """Scores are not scaled; a bias by distance, shared by all layers of a side, is added to them instead."""

    def __init__(self, config: ModelConfig) -> None:
        biases = [
            RelativePositionBias(
                config.num_heads,
                count(config.raw, "relative_attention_num_buckets", default=32),
                count(config.raw, "relative_attention_max_distance", default=128),
                is_causal=is_causal,
            )
            for is_causal in (False, True)
        ]
        heads = (config.hidden_size, config.num_heads, config.head_dim)
        causal_heads = (config.hidden_size, config.num_heads, config.num_heads, config.head_dim)
        encoder_layers = [
            EncoderLayer(
                _behind_norm(EncoderAttention(*heads, scale=1.0, position_bias=biases[0]), config),
                _behind_norm(_feed_forward(config), config),
            )
            for _ in range(count(config.raw, "num_layers"))
        ]
        decoder_layers = [
            CrossDecoderLayer(
                _behind_norm(SelfAttention(*causal_heads, rotary=None, scale=1.0, position_bias=biases[1]), config),
                _behind_norm(CrossAttention(*heads, scale=1.0), config),
                _behind_norm(_feed_forward(config), config),
            )
            for _ in range(config.num_layers)
        ]
        super().__init__(config, encoder_layers, decoder_layers, _norm(config), _norm(config), biases)
        self._is_gated = config.hidden_act.startswith("gated")
        # Only the embedding is too large for a head; version 1.1 has one of its own.
        self._output_scale = config.hidden_size**-0.5 if config.tie_word_embeddings else 1.0

    def embed(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Positions enter in the attention only."""
        return self.shared.forward(token_ids)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [num_rows, hidden_size] -> [num_rows, vocab_size]."""
        return super().logits(hidden * self._output_scale)

    def checkpoint_slices(self) -> Mapping[str, CheckpointSlice]:
        """The checkpoints number the parts of a layer."""
        slices: dict[str, CheckpointSlice] = {}
        for name, part in super().checkpoint_slices().items():
            number = 1 if name.startswith("encoder") else 2
            of_its_side = {"mlp.inner.": f"layer.{number}.DenseReluDense.", "mlp.norm.": f"layer.{number}.layer_norm."}
            up = {"up_proj.": "wi_1." if self._is_gated else "wi."}
            slices |= with_checkpoint_names(_WORDS | of_its_side | up, {name: part})
        return slices

    def known_name(self, tensor_name: str) -> str | None:
        """The first checkpoints hold copies of the embedding, and a bias for the source that nothing uses."""
        is_tied_head = tensor_name == "lm_head.weight" and self.lm_head is None
        if is_tied_head or tensor_name.endswith("EncDecAttention.relative_attention_bias.weight"):
            return None
        return "shared.weight" if tensor_name.endswith(".embed_tokens.weight") else tensor_name


def _behind_norm(part: torch.nn.Module, config: ModelConfig) -> PreNorm:
    return PreNorm(part, _norm(config))


def _norm(config: ModelConfig) -> RMSNorm:
    return RMSNorm(config.hidden_size, config.rms_norm_eps)


def _feed_forward(config: ModelConfig) -> torch.nn.Module:
    """Build what `feed_forward_proj` names: an activation, or "gated-" and one."""
    gate, _, activation = config.hidden_act.rpartition("-")
    activation = "gelu_pytorch_tanh" if config.hidden_act == "gated-gelu" else activation
    if gate == "gated" and activation in GATES:
        return GatedMLP(config.hidden_size, config.intermediate_size, activation=activation)
    if not gate and activation in ACTIVATIONS:
        return FeedForward(config.hidden_size, config.intermediate_size, activation, bias=False)
    raise UnsupportedArchitecture(f"feed_forward_proj {config.hidden_act!r} is not supported")
