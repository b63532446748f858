"""Learned positions."""

import torch

from rayinfer_kernels import ops


class PositionEmbedding(torch.nn.Module):
    """A vector per position, to be added to the token's: weight [max_positions, hidden_size]."""

    def __init__(self, max_positions: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(max_positions, hidden_size), requires_grad=False)

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """positions [num_tokens] -> [num_tokens, hidden_size]."""
        return ops.embedding(positions, self.weight)
