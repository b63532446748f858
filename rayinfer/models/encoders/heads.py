"""Heads of encoders: from a token's hidden state, or a text's, to a number for each label."""

from collections.abc import Callable

import torch

from rayinfer.layers.linear import Linear
from rayinfer.layers.norms import LayerNorm
from rayinfer.models.encoders.pooling import Pooling


class Head(torch.nn.Module):
    """out(norm(activation(dense(x)))), all but the last optional; `pooling` says of which vector of a text.

    None: each token's, in a classification of tokens.
    """

    def __init__(
        self,
        hidden_size: int,
        num_labels: int,
        pooling: Pooling | None,
        *,
        activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
        dense_bias: bool = True,
        norm: LayerNorm | None = None,
    ) -> None:
        super().__init__()
        self.pooling = pooling
        self.dense = None if activation is None else Linear(hidden_size, hidden_size, bias=dense_bias)
        self.norm = norm
        self.out = Linear(hidden_size, num_labels, bias=True)
        self._activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [num_rows, hidden_size] -> [num_rows, num_labels]."""
        if self.dense is not None and self._activation is not None:
            x = self._activation(self.dense.forward(x))
        if self.norm is not None:
            x = self.norm.forward(x)
        return self.out.forward(x)
