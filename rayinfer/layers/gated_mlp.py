"""The gated feed-forward part of a decoder layer."""

import torch

from rayinfer.layers.linear import FusedLinear, Linear, StackedLinear
from rayinfer_kernels import ops


class GatedMLP(torch.nn.Module):
    """down(silu(gate(x)) * up(x)); `is_fused`: the checkpoint holds gate and up in one tensor."""

    def __init__(self, hidden_size: int, intermediate_size: int, *, bias: bool = False, is_fused: bool = False) -> None:
        super().__init__()
        parts = {"gate_proj": intermediate_size, "up_proj": intermediate_size}
        self.gate_up_proj: StackedLinear | FusedLinear
        if is_fused:
            self.gate_up_proj = FusedLinear(hidden_size, list(parts.values()), bias=bias)
        else:
            self.gate_up_proj = StackedLinear(hidden_size, parts, bias=bias)
        self.down_proj = Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [num_tokens, hidden_size] -> the same shape."""
        return self.down_proj.forward(ops.silu_and_mul(self.gate_up_proj.forward(x)))
