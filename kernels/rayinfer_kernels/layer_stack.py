"""All layers of a decoder as one operation: what it is told of the model and of a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from rayinfer_kernels.kv_cache import KVCache
from rayinfer_kernels.packed_weight import PackedWeight


class PackedLinear(NamedTuple):
    """A linear layer: its weight and, if it has one, its bias in the model's type."""

    weight: PackedWeight | torch.Tensor  # a plain one stays as it is on GPUs only: [out_features, in_features]
    bias: torch.Tensor | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerWeights:
    """One layer: x + attention(norm(x)), then the same with a gated feed-forward; norms are RMS norms."""

    attention_norm: torch.Tensor  # [hidden_size]
    qkv: PackedLinear  # queries, keys and values behind one another
    query_norm: torch.Tensor | None  # [head_dim], over each head before it turns
    key_norm: torch.Tensor | None
    output: PackedLinear
    feed_forward_norm: torch.Tensor  # [hidden_size]
    gate_up: PackedLinear  # a gated weight
    down: PackedLinear
    window: int | None  # a token sees the last so many tokens, itself among them

    @property
    def linears(self) -> tuple[PackedLinear, ...]:
        """Its four products in their order."""
        return self.qkv, self.output, self.gate_up, self.down


@dataclass(frozen=True, kw_only=True, slots=True)
class StackShape:
    """What the layers have in common; one `eps` for all norms."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    scale: float
    activation: str  # of the gate: silu or gelu_tanh


class StepTensors(Protocol):
    """Where the tokens of a step lie, as `ops.paged_attention` and `ops.write_kv` say it."""

    @property
    def positions(self) -> torch.Tensor:
        """Each token's place in its request: [num_tokens]."""

    @property
    def slots(self) -> torch.Tensor:
        """Where its key and value go: [num_tokens]."""

    @property
    def query_starts(self) -> torch.Tensor:
        """Where each request's tokens begin: [num_requests + 1]."""

    @property
    def context_lengths(self) -> torch.Tensor:
        """How many tokens each request has then: [num_requests]."""

    @property
    def block_tables(self) -> torch.Tensor:
        """Where they lie: [num_requests, max_blocks]."""

    @property
    def num_decodes(self) -> int:
        """How many of the first requests have one new token each, as far as the host knows."""


class LayerStack(Protocol):
    """Layers that run as one; it holds on to their weights and caches."""

    def bind(self, kv_caches: Sequence[KVCache], cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Give each layer its pool of blocks, and all the rotary tables [max_positions, rotary_dim]."""

    def run(self, x: torch.Tensor, step: StepTensors) -> torch.Tensor:
        """Embedded tokens [num_tokens, hidden_size] -> the same shape, behind the last norm; x may be lost."""
