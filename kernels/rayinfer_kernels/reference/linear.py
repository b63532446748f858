"""Linear layers with packed weights."""

import torch
import torch.nn.functional as F

from rayinfer_kernels.packed_weight import PackedWeight
from rayinfer_kernels.reference.elementwise import gelu_tanh_and_mul, silu_and_mul


def pack(weight: torch.Tensor, is_gated: bool = False) -> PackedWeight | None:
    """Torch's own product reads weights as they are."""
    return None


def packed_linear(x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """x W^T + bias for a weight that another implementation packed."""
    rows = weight.rows(torch.arange(weight.out_features * (2 if weight.is_gated else 1), device=x.device))
    return F.linear(x, rows, bias)


def packed_gated_linear(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None, activation: str
) -> torch.Tensor:
    """activation(gate) * up for a gated weight that another implementation packed."""
    stacked = packed_linear(x, weight, bias)
    return silu_and_mul(stacked) if activation == "silu" else gelu_tanh_and_mul(stacked)
