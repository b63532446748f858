"""One layer of a decoder: attention and feed-forward around a running sum."""

from abc import ABC, abstractmethod

import torch

from rayinfer.attention.batch import AttentionBatch
from rayinfer.layers.rotary_embedding import Angles


class DecoderLayer(torch.nn.Module, ABC):
    """What a decoder stacks."""

    @abstractmethod
    def forward(
        self, x: torch.Tensor, residual: torch.Tensor, angles: Angles | None, batch: AttentionBatch
    ) -> torch.Tensor:
        """Add x to the residual in place and return what the next layer must add; both [num_tokens, hidden_size].

        So the addition and the norm after it are one operation.
        """


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
