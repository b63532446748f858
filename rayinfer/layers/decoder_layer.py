"""One layer of a decoder: attention and feed-forward around a running sum."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch

from rayinfer.attention.batch import AttentionBatch
from rayinfer.layers.gated_mlp import GatedMLP
from rayinfer.layers.rms_norm import RMSNorm
from rayinfer.layers.rotary_embedding import Angles
from rayinfer.layers.self_attention import SelfAttention
from rayinfer_kernels import ops


class StackedLayer(NamedTuple):
    """A layer as `ops.layer_stack` wants it, and what it must have in common with the others."""

    weights: ops.LayerWeights
    shape: ops.StackShape


class DecoderLayer(torch.nn.Module, ABC):
    """What a decoder stacks."""

    @abstractmethod
    def forward(
        self, x: torch.Tensor, residual: torch.Tensor, angles: Angles | None, batch: AttentionBatch
    ) -> torch.Tensor:
        """Add x to the residual in place and return what the next layer must add; both [num_tokens, hidden_size].

        So the addition and the norm after it are one operation.
        """

    def stacked(self) -> StackedLayer | None:
        """Describe the layer for an operation on all layers; None where it does more, or its weights are not packed."""
        return None


class PreNormLayer(DecoderLayer):
    """Attention and feed-forward, each behind a norm that takes (x, residual) and adds x to the residual first."""

    def __init__(
        self,
        *,
        attention: torch.nn.Module,
        feed_forward: torch.nn.Module,
        attention_norm: torch.nn.Module,
        feed_forward_norm: torch.nn.Module,
    ) -> None:
        super().__init__()
        self.self_attn = attention
        self.mlp = feed_forward
        self.input_layernorm = attention_norm
        self.post_attention_layernorm = feed_forward_norm

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor, angles: Angles | None, batch: AttentionBatch
    ) -> torch.Tensor:
        """See DecoderLayer."""
        x = self.self_attn.forward(self.input_layernorm.forward(x, residual), angles, batch)
        out: torch.Tensor = self.mlp.forward(self.post_attention_layernorm.forward(x, residual))
        return out

    def stacked(self) -> StackedLayer | None:
        """See DecoderLayer."""
        attention, feed_forward = self.self_attn, self.mlp
        norms = (self.input_layernorm, self.post_attention_layernorm)
        if not (isinstance(attention, SelfAttention) and isinstance(feed_forward, GatedMLP) and attention.is_plain):
            return None
        optional_norms = (norm for norm in (attention.q_norm, attention.k_norm) if norm is not None)
        eps = {norm.plain_eps if isinstance(norm, RMSNorm) else None for norm in (*norms, *optional_norms)}
        linears = (attention.qkv_proj, attention.o_proj, feed_forward.gate_up_proj, feed_forward.down_proj)
        qkv, output, gate_up, down = (linear.packed_linear for linear in linears)
        if None in eps or len(eps) > 1 or not (qkv and output and gate_up and down):
            return None
        weights = ops.LayerWeights(
            attention_norm=norms[0].weight,
            qkv=qkv,
            query_norm=None if attention.q_norm is None else attention.q_norm.weight,
            key_norm=None if attention.k_norm is None else attention.k_norm.weight,
            output=output,
            feed_forward_norm=norms[1].weight,
            gate_up=gate_up,
            down=down,
            window=attention.attention.window,
        )
        shape = ops.StackShape(
            hidden_size=len(norms[0].weight),
            num_heads=attention.num_heads,
            num_kv_heads=attention.num_kv_heads,
            head_dim=attention.head_dim,
            eps=eps.pop(),
            scale=attention.attention.scale,
            activation=feed_forward.activation,
        )
        return StackedLayer(weights, shape)
