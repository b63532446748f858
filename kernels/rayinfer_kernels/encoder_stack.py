"""All layers of an encoder as one operation, and its arguments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch

from rayinfer_kernels.layer_stack import PackedLinear

StackPooling = Literal["mean", "cls", "last"]


class NormWeights(NamedTuple):
    """Scale and shift of a layer norm, [hidden_size] each."""

    weight: torch.Tensor
    bias: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderLayerWeights:
    """One layer: norm(x + attention(x)), then norm(x + down(activation(up(x)))); norms are layer norms."""

    qkv: PackedLinear  # queries, keys and values behind one another
    output: PackedLinear
    attention_norm: NormWeights
    up: PackedLinear  # may be gated
    down: PackedLinear
    feed_forward_norm: NormWeights

    @property
    def linears(self) -> tuple[PackedLinear, ...]:
        """Return its four linear layers in their order."""
        return self.qkv, self.output, self.up, self.down


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingWeights:
    """Tables [num_rows, hidden_size] of the layers' type whose rows are added and normed; None: there is no such."""

    tokens: torch.Tensor
    types: torch.Tensor | None
    positions: torch.Tensor | None
    norm: NormWeights


class TokenRows(NamedTuple):
    """Rows of each token in the tables of an EmbeddingWeights, int64 [num_tokens] each."""

    ids: torch.Tensor
    types: torch.Tensor
    positions: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderStackShape:
    """Shape that all layers share; one `eps` for all norms."""

    hidden_size: int
    num_heads: int
    head_dim: int
    eps: float
    activation: str  # of the feed-forward: gelu, gelu_tanh, relu or silu


class EncoderStack(Protocol):
    """Layers that run as one operation, with references to their weights."""

    def run(self, x: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """x [num_tokens, hidden_size] of texts of these lengths, one after the other, -> the same shape."""
        ...

    def run_tokens(
        self, tokens: TokenRows, lengths: Sequence[int], pooling: StackPooling | None = None
    ) -> torch.Tensor:
        """Run the layers on the tokens' embeddings -> [num_tokens, hidden_size].

        With a pooling each text's mean over its tokens, or its first or last token: [num_texts, hidden_size]. The last
        layer computes no more than that token then, with the same bits; each text must have one.
        """
