"""Root mean square normalisation."""

import torch

from rayinfer_kernels import ops


class RMSNorm(torch.nn.Module):
    """Scale each token by its root mean square; with a residual, add to it in place first."""

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(hidden_size), requires_grad=False)
        self._eps = eps

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """x [num_tokens, hidden_size] -> the same shape."""
        if residual is None:
            return ops.rms_norm(x, self.weight, self._eps)
        return ops.add_rms_norm(x, residual, self.weight, self._eps)
