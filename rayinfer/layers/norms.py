"""RMS norm and layer norm."""

import torch
import torch.nn.functional as F

from rayinfer_kernels import ops


class RMSNorm(torch.nn.Module):
    """Scale each token by its root mean square; with a residual, add to it in place first.

    With `unit_offset` the scale is 1 plus the checkpoint's weight.
    """

    def __init__(self, hidden_size: int, eps: float, *, unit_offset: bool = False) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(hidden_size), requires_grad=False)
        self._eps = eps
        self._unit_offset = unit_offset

    @property
    def plain_eps(self) -> float | None:
        """The epsilon added to the mean square; None for a norm whose scale is 1 + weight."""
        return None if self._unit_offset else self._eps

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """x [num_tokens, hidden_size] -> the same shape."""
        if residual is None:
            return ops.rms_norm(x, self.weight, self._eps, self._unit_offset)
        return ops.add_rms_norm(x, residual, self.weight, self._eps, self._unit_offset)


class LayerNorm(torch.nn.Module):
    """Bring each token to mean 0 and variance 1; with a residual, add to it in place first."""

    def __init__(self, hidden_size: int, eps: float, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(hidden_size), requires_grad=False)
        self.bias = torch.nn.Parameter(torch.empty(hidden_size), requires_grad=False) if bias else None
        self._eps = eps
        self.uses_torch = False  # rather than our kernels

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """x [num_tokens, hidden_size] -> the same shape."""
        if residual is not None:
            x = residual.add_(x)
        if self.uses_torch:
            return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self._eps)
        bias = torch.zeros_like(self.weight) if self.bias is None else self.bias
        return ops.layer_norm(x, self.weight, bias, self._eps)
