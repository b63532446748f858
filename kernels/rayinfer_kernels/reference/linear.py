"""Linear layers with packed weights."""

import torch
import torch.nn.functional as F

from rayinfer_kernels.packed_weight import PackedWeight


def pack(weight: torch.Tensor) -> PackedWeight | None:
    """Torch's own product reads weights as they are."""
    return None


def packed_linear(x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """x W^T + bias for a weight that another implementation packed."""
    rows = weight.rows(torch.arange(weight.out_features, device=x.device))
    return F.linear(x, rows, bias)
