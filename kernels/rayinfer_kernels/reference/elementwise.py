"""Norms, rotations and gates between the matrix products."""

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Divide each row of x [..., hidden] by its root mean square (Zhang and Sennrich 2019), in float32."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Add x to `residual` in place and return the norm of the sum; all [num_tokens, hidden]."""
    residual += x
    return rms_norm(residual, weight, eps)


def rotary_embedding(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate x [num_tokens, num_heads, head_dim] by half-split pairs (Su et al. 2021).

    cos and sin: [num_tokens, head_dim].
    """
    first, second = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat((-second, first), -1) * sin[:, None]


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up for x = [gate, up] along the last axis: [num_tokens, 2 * n] -> [num_tokens, n] (Shazeer 2020)."""
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up
