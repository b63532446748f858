"""Granite 3 and 4 (IBM 2024, 2025), dense: Llama with four multipliers.

Every layer adds m times its outputs to the sum that it reads through RMS norms. Here the sum is kept divided by m: then
outputs are added as they are, embeddings are divided once, and a norm that divides by sqrt(mean square + eps) gives the
same of a smaller sum with an eps of eps / m^2. So all layers are Llama's, in one operation where those are.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from rayinfer.attention.paged_attention import AttentionBatch
from rayinfer.errors import UnsupportedArchitecture
from rayinfer.layers.checkpoint_slices import CheckpointSlice, with_checkpoint_names
from rayinfer.layers.gated_mlp import GatedMLP
from rayinfer.layers.norms import RMSNorm
from rayinfer.layers.rotary_embedding import RotaryEmbedding
from rayinfer.models.architectures.llama_layers import llama_layers
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.config_fields import count, number
from rayinfer.models.model_config import ModelConfig

_GRANITE_4_NAMES = {"mlp.gate_up_proj": "shared_mlp.input_linear", "mlp.down_proj": "shared_mlp.output_linear"}
_ATTENTION = ("attention", "full_attention")  # kinds of layers as published, and as transformers 5 writes them


class GraniteForCausalLM(CausalDecoder):
    """Multipliers of embeddings, of what layers add to the sum, of attention scores, and a divisor of logits."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        is_rotated: bool = True,
        feed_forward: Callable[[int], torch.nn.Module] | None = None,
    ) -> None:
        raw = config.raw
        self._added_scale = number(raw, "residual_multiplier", default=1.0)
        eps = config.rms_norm_eps / self._added_scale**2
        rotary = RotaryEmbedding(config.head_dim, config.max_position_embeddings, config.rope)
        layers = llama_layers(
            replace(config, rms_norm_eps=eps),
            rotary,
            qkv_bias=config.attention_bias,
            output_bias=config.attention_bias,
            rotates=[is_rotated] * config.num_layers,
            scale=number(raw, "attention_multiplier", default=1.0),
            feed_forward=feed_forward,
        )
        rotaries = [rotary if is_rotated else None] * config.num_layers
        super().__init__(config, layers, RMSNorm(config.hidden_size, eps), rotaries)
        self._embedding_scale = number(raw, "embedding_multiplier", default=1.0) / self._added_scale
        self._logit_divisor = number(raw, "logits_scaling", default=1.0)

    def embed(self, token_ids: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        """token_ids [num_tokens] -> [num_tokens, hidden_size], divided by the residual multiplier."""
        return super().embed(token_ids, batch) * self._embedding_scale

    def forward(
        self, token_ids: torch.Tensor, batch: AttentionBatch, hidden: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See CausalDecoder; `hidden` between stages is divided as well, `states_read` are not."""
        out = super().forward(token_ids, batch, hidden)
        if self.states_read is not None:
            self.states_read.mul_(self._added_scale)
        return out

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [num_rows, hidden_size] -> [num_rows, vocab_size]."""
        return super().logits(hidden).div_(self._logit_divisor)


class GraniteMoeHybridForCausalLM(GraniteForCausalLM):
    """Granite 4 as far as it has attention and a dense feed-forward in all layers; with rotary positions, or none."""

    def __init__(self, config: ModelConfig) -> None:
        _check_layers(config)
        super().__init__(
            config,
            is_rotated=config.raw.get("position_embedding_type") == "rope",
            feed_forward=lambda _: GatedMLP(
                *(config.hidden_size, count(config.raw, "shared_intermediate_size", default=1024)),
                activation=config.hidden_act,
                is_fused=True,
            ),
        )

    def checkpoint_slices(self) -> Mapping[str, CheckpointSlice]:
        """See Decoder."""
        return with_checkpoint_names(_GRANITE_4_NAMES, super().checkpoint_slices())


def _check_layers(config: ModelConfig) -> None:
    kinds = config.raw.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != config.num_layers:
        raise ValueError(f"layer_types must be a list of {config.num_layers} names, got {kinds!r}")
    if other := next((kind for kind in kinds if kind not in _ATTENTION), None):
        raise UnsupportedArchitecture(f"layer type {other!r} is not supported, only attention: take a dense Granite 4")
    if (num_experts := config.raw.get("num_local_experts")) != 0:
        raise UnsupportedArchitecture(
            f"num_local_experts {num_experts!r} is not supported, only 0: take a dense Granite 4"
        )
    if (kind := config.raw.get("position_embedding_type")) not in (None, "rope", "nope"):
        raise UnsupportedArchitecture(f"position_embedding_type {kind!r} is not supported, only 'rope' and 'nope'")
