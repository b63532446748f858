"""Norms, rotations and gates between the matrix products."""

import torch
import torch.nn.functional as F

from rayinfer_kernels.implementation import ArgmaxResult


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool = False) -> torch.Tensor:
    """Divide each row of x [..., hidden] by its root mean square (Zhang and Sennrich 2019), in float32."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (normed * (1.0 + weight.float())).to(x.dtype) if unit_offset else weight * normed.to(x.dtype)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool = False
) -> torch.Tensor:
    """Add x to `residual` in place and return the norm of the sum; all [num_tokens, hidden]."""
    residual += x
    return rms_norm(residual, weight, eps, unit_offset)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """Bring each row of x [num_tokens, hidden] to mean 0 and variance 1 (Ba et al. 2016), then scale and shift it."""
    return F.layer_norm(x, weight.shape, weight, bias, eps)


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


def gelu_tanh_and_mul(x: torch.Tensor) -> torch.Tensor:
    """gelu_tanh(gate) * up for x = [gate, up] along the last axis: [num_tokens, 2 * n] -> [num_tokens, n]."""
    gate, up = x.chunk(2, -1)
    return F.gelu(gate, approximate="tanh") * up


def gelu(x: torch.Tensor) -> torch.Tensor:
    """x times the mass of the normal distribution below x (Hendrycks and Gimpel 2016)."""
    return F.gelu(x)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """Approximate `gelu` by a hyperbolic tangent, as in the same paper."""
    return F.gelu(x, approximate="tanh")


def argmax(rows: torch.Tensor) -> ArgmaxResult:
    """Find the maximum of each row and its first index; NaN where the row holds NaN."""
    values, indices = rows.max(-1)
    return ArgmaxResult(values.float(), indices)


def mask_rows_(rows: torch.Tensor, lines: torch.Tensor, masks: torch.Tensor) -> None:
    """See `ops.mask_rows_`."""
    check_mask(rows, lines, masks)
    bits = masks.unsqueeze(-1) >> torch.arange(32, dtype=torch.int32, device=masks.device) & 1
    is_forbidden = bits.flatten(1)[:, : rows.shape[1]] == 0
    rows[lines] = rows[lines].masked_fill_(is_forbidden, float("-inf"))


def check_mask(rows: torch.Tensor, lines: torch.Tensor, masks: torch.Tensor) -> None:
    """Reject masks of other types or shapes than `ops.mask_rows_` takes."""
    if rows.dtype != torch.float32 or rows.dim() != 2:
        raise ValueError(f"expected rows of float32, got {tuple(rows.shape)} of {rows.dtype}")
    check_mask_shapes(lines, masks, rows.shape[1])


def check_mask_shapes(lines: torch.Tensor, masks: torch.Tensor, width: int) -> None:
    """Reject masks of other types or shapes than rows of this width take."""
    if lines.dtype != torch.int64 or masks.dtype != torch.int32 or lines.dim() != 1 or masks.dim() != 2:
        raise ValueError(f"expected int64 lines and int32 masks, got {lines.dtype} and {masks.dtype}")
    if len(lines) != len(masks) or 32 * masks.shape[1] < width:
        raise ValueError(f"{len(lines)} lines of {width} numbers need as many masks, got {tuple(masks.shape)}")
