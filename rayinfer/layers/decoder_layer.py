"""One layer of a decoder: attention and feed-forward around a running sum."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch

from rayinfer.attention.paged_attention import AttentionBatch
from rayinfer.layers.gated_mlp import GatedMLP
from rayinfer.layers.norms import RMSNorm
from rayinfer.layers.rotary_embedding import Angles
from rayinfer.layers.self_attention import SelfAttention
from rayinfer_kernels import ops


class StackedLayer(NamedTuple):
    """A layer as `ops.layer_stack` wants it, and what it must have in common with the others."""

    weights: ops.LayerWeights
    shape: ops.StackShape


class DecoderLayer(torch.nn.Module, ABC):
    """Interface of a decoder's layers."""

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
        if not (isinstance(attention, SelfAttention) and isinstance(feed_forward, GatedMLP) and attention.is_plain):
            return None
        attention_norm, feed_forward_norm = self.input_layernorm, self.post_attention_layernorm
        head_norms = [norm for norm in (attention.q_norm, attention.k_norm) if norm is not None]
        if not (isinstance(attention_norm, RMSNorm) and isinstance(feed_forward_norm, RMSNorm)):
            return None
        eps = attention_norm.plain_eps
        norms = (feed_forward_norm, *head_norms)
        if eps is None or any(not isinstance(norm, RMSNorm) or norm.plain_eps != eps for norm in norms):
            return None
        linears = (attention.qkv_proj, attention.o_proj, feed_forward.gate_up_proj, feed_forward.down_proj)
        qkv, output, gate_up, down = (linear.packed_linear for linear in linears)
        if not (qkv and output and gate_up and down):
            return None
        weights = ops.LayerWeights(
            attention_norm=attention_norm.weight,
            qkv=qkv,
            query_norm=_scale_of(attention.q_norm),
            key_norm=_scale_of(attention.k_norm),
            output=output,
            feed_forward_norm=feed_forward_norm.weight,
            gate_up=gate_up,
            down=down,
            window=attention.attention.window,
            is_rotated=attention.is_rotated,
        )
        shape = ops.StackShape(
            hidden_size=len(attention_norm.weight),
            num_heads=attention.num_heads,
            num_kv_heads=attention.num_kv_heads,
            head_dim=attention.head_dim,
            eps=eps,
            scale=attention.attention.scale,
            activation=feed_forward.activation,
        )
        return StackedLayer(weights, shape)


def _scale_of(norm: torch.nn.Module | None) -> torch.Tensor | None:
    return norm.weight if isinstance(norm, RMSNorm) else None
