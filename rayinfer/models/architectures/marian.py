"""Marian (Junczys-Dowmunt et al. 2018), the translators of OPUS-MT: the first transformer, norms behind every part."""

import math
from collections.abc import Mapping

import torch

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.layers.checkpoint_slices import CheckpointSlice, with_checkpoint_names
from rayinfer.layers.cross_attention import CrossAttention
from rayinfer.layers.encoder_attention import EncoderAttention
from rayinfer.layers.feed_forward import ACTIVATIONS, FeedForward
from rayinfer.layers.norms import LayerNorm
from rayinfer.layers.residual import PostNorm
from rayinfer.layers.self_attention import SelfAttention
from rayinfer.layers.shards import ShardSlice
from rayinfer.models.config_fields import count, flag
from rayinfer.models.encoder_decoder import CrossDecoderLayer, EncoderDecoder, EncoderLayer
from rayinfer.models.model_config import ModelConfig
from rayinfer.tensor_parallel import Shard

NORM_EPS = 1e-5  # not in config.json
_WORDS = {
    "shared.": "model.shared.",
    "encoder_layers.": "model.encoder.layers.",
    "decoder_layers.": "model.decoder.layers.",
    "self_attn.inner.": "self_attn.",
    "self_attn.norm.": "self_attn_layer_norm.",
    "cross_attn.inner.": "encoder_attn.",
    "cross_attn.norm.": "encoder_attn_layer_norm.",
    "mlp.inner.up_proj.": "fc1.",
    "mlp.inner.down_proj.": "fc2.",
    "mlp.norm.": "final_layer_norm.",
    "o_proj.": "out_proj.",
}


class MarianMTModel(EncoderDecoder):
    """Sinusoidal positions, biases everywhere, the logits' too."""

    def __init__(self, config: ModelConfig) -> None:
        raw = config.raw
        if not (flag(raw, "share_encoder_decoder_embeddings", default=True) and config.tie_word_embeddings):
            raise UnsupportedArchitecture("Marian models with more than one embedding are not supported")
        if config.hidden_act not in ACTIVATIONS:
            raise UnsupportedArchitecture(f"activation_function {config.hidden_act!r} is not supported")
        hidden, encoder_heads = config.hidden_size, count(raw, "encoder_attention_heads")
        if hidden % encoder_heads:
            raise UnsupportedArchitecture(f"d_model {hidden} is no multiple of encoder_attention_heads {encoder_heads}")
        heads = (hidden, config.num_heads, config.head_dim)
        causal_heads = (hidden, config.num_heads, config.num_heads, config.head_dim)
        encoder_layers = [
            EncoderLayer(
                _before_norm(EncoderAttention(hidden, encoder_heads, hidden // encoder_heads, bias=True), hidden),
                _before_norm(FeedForward(hidden, count(raw, "encoder_ffn_dim"), config.hidden_act), hidden),
            )
            for _ in range(count(raw, "encoder_layers"))
        ]
        decoder_layers = [
            CrossDecoderLayer(
                _before_norm(SelfAttention(*causal_heads, rotary=None, qkv_bias=True, output_bias=True), hidden),
                _before_norm(CrossAttention(*heads, bias=True), hidden),
                _before_norm(FeedForward(hidden, config.intermediate_size, config.hidden_act), hidden),
            )
            for _ in range(config.num_layers)
        ]
        super().__init__(config, encoder_layers, decoder_layers)
        self.final_logits_bias = torch.nn.Parameter(torch.empty(1, config.vocab_size), requires_grad=False)
        self._embedding_scale = math.sqrt(hidden) if flag(raw, "scale_embedding") else 1.0
        self._positions = torch.empty(0)

    def take_shard(self, shard: Shard) -> Mapping[str, ShardSlice]:
        """See EncoderDecoder: the logits' bias is the last stage's, whole on each of its ranks."""
        if not shard.coordinates.is_last_stage:
            del self.final_logits_bias
        return super().take_shard(shard)

    def prepare(
        self, dtype: torch.dtype, device: torch.device, max_positions: int, longest_sequence: int | None = None
    ) -> None:
        """Compute the sines and cosines of the positions too."""
        super().prepare(dtype, device, max_positions, longest_sequence)
        if self._shard.coordinates.is_first_stage:
            self._positions = sinusoids(max_positions, self.config.hidden_size).to(device, dtype)

    def embed(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """token_ids [num_tokens] at `positions` -> [num_tokens, hidden_size]."""
        return self.shared.forward(token_ids) * self._embedding_scale + self._positions[positions]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [num_rows, hidden_size] -> [num_rows, vocab_size]."""
        return super().logits(hidden) + self.final_logits_bias

    def checkpoint_slices(self) -> Mapping[str, CheckpointSlice]:
        """See Decoder."""
        return with_checkpoint_names(_WORDS, super().checkpoint_slices())

    def known_name(self, tensor_name: str) -> str | None:
        """The embedding goes by several names, and positions need not be stored."""
        if tensor_name == "lm_head.weight" or tensor_name.endswith(".embed_positions.weight"):
            return None
        return "model.shared.weight" if tensor_name.endswith(".embed_tokens.weight") else tensor_name


def sinusoids(num_positions: int, width: int) -> torch.Tensor:
    """Compute angles of falling frequency by channel, [num_positions, width]: all sines, then all cosines."""
    num_sines = (width + 1) // 2
    channels = torch.arange(num_sines, dtype=torch.float64)
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] / 10000 ** (2 * channels / width)
    return torch.cat((angles.sin(), angles.cos()), -1)[:, :width].float()


def _before_norm(part: torch.nn.Module, hidden_size: int) -> PostNorm:
    return PostNorm(part, LayerNorm(hidden_size, NORM_EPS))
