"""Root mean square normalisation."""

import torch

from rayinfer_kernels import ops


class RMSNorm(torch.nn.Module):
    """Scale each token by its root mean square; with a residual, add to it in place first.

    With `unit_offset` the checkpoint's weight says how far the scale is from 1.
    """

    def __init__(self, hidden_size: int, eps: float, *, unit_offset: bool = False) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(hidden_size), requires_grad=False)
        self._eps = eps
        self._unit_offset = unit_offset

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """x [num_tokens, hidden_size] -> the same shape."""
        if residual is None:
            return ops.rms_norm(x, self.weight, self._eps, self._unit_offset)
        return ops.add_rms_norm(x, residual, self.weight, self._eps, self._unit_offset)
