"""All layers of a decoder as one operation, and its arguments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from rayinfer_kernels.kv_cache import KVCache
from rayinfer_kernels.low_rank import LowRankTable, TokenSlots
from rayinfer_kernels.packed_weight import PackedWeight


class PackedLinear(NamedTuple):
    """A linear layer: its weight and, if it has one, its bias in the model's type."""

    weight: PackedWeight | torch.Tensor  # a plain one stays as it is on GPUs only: [out_features, in_features]
    bias: torch.Tensor | None
    low_rank: LowRankTable | None = None  # the terms of adapters, where there may be some


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerWeights:
    """One layer: x + attention(norm(x)), then the same with a gated feed-forward; norms are RMS norms."""

    attention_norm: torch.Tensor  # [hidden_size]
    qkv: PackedLinear  # queries, keys and values behind one another
    query_norm: torch.Tensor | None  # [head_dim], over each head before it is rotated
    key_norm: torch.Tensor | None
    output: PackedLinear
    feed_forward_norm: torch.Tensor  # [hidden_size]
    gate_up: PackedLinear  # a gated weight
    down: PackedLinear
    window: int | None  # a token sees the last so many tokens, itself among them
    is_rotated: bool = True  # whether queries and keys have rotary positions

    @property
    def linears(self) -> tuple[PackedLinear, ...]:
        """Return its four linear layers in their order."""
        return self.qkv, self.output, self.gate_up, self.down


@dataclass(frozen=True, kw_only=True, slots=True)
class StackShape:
    """Shape that all layers share; one `eps` for all norms."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    scale: float
    activation: str  # of the gate: silu or gelu_tanh


@dataclass(frozen=True, slots=True)
class OutputTokens:
    """Tokens whose hidden states a step returns: the last ones of each request, as many as it has outputs."""

    lines: torch.Tensor  # int64 [num_outputs], ascending, among the step's tokens
    cu_seqlens: torch.Tensor  # int32 [num_requests + 1], cumulative numbers of the requests' outputs

    @classmethod
    def last_of_each(cls, cu_seqlens_q: torch.Tensor) -> "OutputTokens":
        """Return each request's last token: each has one, by the cumulative numbers of the step's tokens."""
        return cls(cu_seqlens_q[1:].long() - 1, torch.arange(len(cu_seqlens_q), device=cu_seqlens_q.device).int())


class StepTensors(Protocol):
    """Positions, slot_mapping and block tables of a step's tokens, as in `ops.paged_attention` and `ops.write_kv`."""

    @property
    def positions(self) -> torch.Tensor:
        """Each token's position in its request: [num_tokens]."""

    @property
    def slot_mapping(self) -> torch.Tensor:
        """Slot of each token's key and value: [num_tokens]."""

    @property
    def cu_seqlens_q(self) -> torch.Tensor:
        """Cumulative numbers of each request's new tokens: [num_requests + 1]."""

    @property
    def seq_lens(self) -> torch.Tensor:
        """Number of each request's tokens, the new ones included: [num_requests]."""

    @property
    def block_tables(self) -> torch.Tensor:
        """Blocks of each request: [num_requests, max_blocks]."""

    @property
    def num_decodes(self) -> int:
        """Number of leading requests with one new token each, as far as the host knows."""

    @property
    def adapters(self) -> TokenSlots | None:
        """Each token's slot of an adapter; None where no token has one."""

    @property
    def outputs(self) -> OutputTokens | None:
        """Tokens whose hidden states are returned; None: all."""


class LayerStack(Protocol):
    """Layers that run as one operation, with references to their weights and caches."""

    takes_adapters: bool  # whether it computes steps in which tokens have adapters

    def bind(self, kv_caches: Sequence[KVCache], cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Give each layer its pool of blocks, and all the rotary tables [max_positions, rotary_dim]."""

    def run(self, x: torch.Tensor, step: StepTensors) -> torch.Tensor:
        """Embedded tokens [num_tokens, hidden_size] -> [num_outputs, hidden_size], behind the last norm; x may be lost.

        Without `outputs` these are all tokens.
        """
