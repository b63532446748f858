"""gpt-oss (OpenAI 2025): attention with sinks, windows in every second layer, experts with biases and clamped gates."""

from collections.abc import Mapping

import torch

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.layers.checkpoint_slices import CheckpointSlice, with_checkpoint_names
from rayinfer.layers.expert_linear import ExpertLinear
from rayinfer.layers.mixture_of_experts import GatedExperts, MixtureOfExperts
from rayinfer.layers.norms import RMSNorm
from rayinfer.layers.rotary_embedding import RotaryEmbedding
from rayinfer.layers.shards import ShardSlice
from rayinfer.models.architectures.expert_layers import expert_counts
from rayinfer.models.architectures.llama_layers import llama_layers
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.config_fields import count, flag, number
from rayinfer.models.model_config import ModelConfig
from rayinfer.models.sliding_windows import GLOBAL, SLIDING, layer_kinds
from rayinfer.tensor_parallel import Shard
from rayinfer_kernels import ops

_CHECKPOINT_NAMES = {".mlp.gate.": ".mlp.router."}


class BiasedExpertLinear(ExpertLinear):
    """A linear layer with a bias per expert, whose matrices the checkpoint holds in one tensor, mostly transposed."""

    def __init__(self, num_experts: int, in_features: int, out_features: int, *, is_transposed: bool) -> None:
        super().__init__(num_experts, in_features, {"all": out_features})
        self._is_transposed = is_transposed
        self.bias = torch.nn.Parameter(torch.empty(num_experts, out_features), requires_grad=False)

    def forward(self, x: torch.Tensor, expert_starts: torch.Tensor) -> torch.Tensor:
        """See ExpertLinear."""
        expert_of_row = torch.searchsorted(expert_starts[1:], torch.arange(len(x), device=x.device), right=True)
        return super().forward(x, expert_starts) + self.bias[expert_of_row]

    def checkpoint_slices(self, path: str) -> dict[str, CheckpointSlice]:
        """See ExpertLinear."""
        return {
            path: CheckpointSlice(f"{path}.weight", is_transposed=self._is_transposed),
            f"{path}_bias": CheckpointSlice(f"{path}.bias"),
        }


class ClampedExperts(GatedExperts):
    """down((up + 1) * gate * sigmoid(alpha * gate)) with gate at most `limit` and up within it on both sides.

    Outputs of gate and up alternate.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_experts: int,
        *,
        alpha: float,
        limit: float,
        is_transposed: bool,
    ) -> None:
        super().__init__(hidden_size, intermediate_size, num_experts)
        widths = (hidden_size, 2 * intermediate_size)
        self.gate_up_proj = BiasedExpertLinear(num_experts, *widths, is_transposed=is_transposed)
        self.down_proj = BiasedExpertLinear(num_experts, intermediate_size, hidden_size, is_transposed=is_transposed)
        self._alpha, self._limit = alpha, limit

    def take_shard(self, shard: Shard) -> Mapping[str, ShardSlice]:
        """See Shardable."""
        weights = super().take_shard(shard)
        return {**weights, **{name.replace(".weight", ".bias"): cut for name, cut in weights.items()}}

    def gated(self, stacked: torch.Tensor) -> torch.Tensor:
        """See GatedExperts."""
        gate = stacked[:, ::2].clamp(max=self._limit)
        up = stacked[:, 1::2].clamp(-self._limit, self._limit)
        # torch.sigmoid rounds a batch's last elements otherwise than the rest: a row's bits would depend on others.
        return ops.silu_and_mul(torch.cat([gate * self._alpha, (up + 1) / self._alpha], -1))


class GptOssForCausalLM(CausalDecoder):
    """Rotary positions by yarn, grouped queries with biases, and experts in every layer."""

    def __init__(self, config: ModelConfig) -> None:
        rotary = RotaryEmbedding(config.head_dim, config.max_position_embeddings, config.rope)
        has_biases = flag(config.raw, "attention_bias", default=True)
        layers = llama_layers(
            config,
            rotary,
            windows=_windows(config),
            qkv_bias=has_biases,
            output_bias=has_biases,
            has_sinks=True,
            feed_forward=lambda _: _experts(config),
        )
        norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        super().__init__(config, layers, norm, [rotary] * config.num_layers)

    def checkpoint_slices(self) -> Mapping[str, CheckpointSlice]:
        """See Decoder."""
        return with_checkpoint_names(_CHECKPOINT_NAMES, super().checkpoint_slices())


def _windows(config: ModelConfig) -> list[int | None]:
    kinds = layer_kinds(config) or [GLOBAL if index % 2 else SLIDING for index in range(config.num_layers)]
    window = count(config.raw, "sliding_window", default=128)
    return [window if kind == SLIDING else None for kind in kinds]


def _experts(config: ModelConfig) -> MixtureOfExperts:
    if config.hidden_act != "silu":
        raise UnsupportedArchitecture(f"hidden_act {config.hidden_act!r} is not supported, only 'silu'")
    counts = expert_counts(config)
    sizes = (config.hidden_size, config.intermediate_size)
    experts = ClampedExperts(
        *(*sizes, counts.num_experts),
        alpha=number(config.raw, "swiglu_alpha", default=1.702),
        limit=number(config.raw, "swiglu_limit", default=7.0),
        is_transposed=not config.raw.get("quantization_config"),  # MXFP4 has its blocks along the inputs
    )
    return MixtureOfExperts(
        *sizes,
        num_experts=counts.num_experts,
        experts_per_token=counts.experts_per_token,
        renormalize=True,  # the same as a softmax of the chosen experts' logits
        bias=True,
        experts=experts,
    )
