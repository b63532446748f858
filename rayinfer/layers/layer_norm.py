"""Layer normalisation."""

import torch

from rayinfer_kernels import ops


class LayerNorm(torch.nn.Module):
    """Bring each token to mean 0 and variance 1; with a residual, add to it in place first."""

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(hidden_size), requires_grad=False)
        self.bias = torch.nn.Parameter(torch.empty(hidden_size), requires_grad=False)
        self._eps = eps

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """x [num_tokens, hidden_size] -> the same shape."""
        if residual is not None:
            x = residual.add_(x)
        return ops.layer_norm(x, self.weight, self.bias, self._eps)
