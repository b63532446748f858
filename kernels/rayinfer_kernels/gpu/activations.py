"""Gates and activations: each program computes a piece of one row."""

import torch

from rayinfer_kernels.gpu.language import tl, triton
from rayinfer_kernels.gpu.rounding import rounded
from rayinfer_kernels.gpu.tuning import ACTIVATION_BLOCK, ACTIVATION_WARPS


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """See `ops.silu_and_mul`."""
    return _change_rows(x, "silu", is_gate=True)


def gelu_tanh_and_mul(x: torch.Tensor) -> torch.Tensor:
    """See `ops.gelu_tanh_and_mul`."""
    return _change_rows(x, "gelu_tanh", is_gate=True)


def gelu(x: torch.Tensor) -> torch.Tensor:
    """See `ops.gelu`."""
    return _change_rows(x, "gelu", is_gate=False)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """See `ops.gelu_tanh`."""
    return _change_rows(x, "gelu_tanh", is_gate=False)


def _change_rows(x: torch.Tensor, activation: str, *, is_gate: bool) -> torch.Tensor:
    if is_gate and x.shape[-1] % 2:
        raise ValueError(f"{x.shape[-1]} numbers are not two equal halves")
    rows = x.reshape(-1, x.shape[-1])
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    width = x.shape[-1] // 2 if is_gate else x.shape[-1]
    out = torch.empty((*x.shape[:-1], width), dtype=x.dtype, device=x.device)
    if out.numel():
        _activation_kernel[(len(rows), -(-width // ACTIVATION_BLOCK))](
            *(rows, out, rows.stride(0), width),
            activation=activation,
            is_gate=is_gate,
            block=ACTIVATION_BLOCK,
            num_warps=ACTIVATION_WARPS,
        )
    return out


@triton.jit
def activated(x, activation: tl.constexpr):
    """Return the activation of `x`, in float32."""
    if activation == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    if activation == "gelu_tanh":
        # (1 + tanh(u)) / 2 is the logistic function of 2 u, which keeps its digits far below zero.
        return x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    return x / (1.0 + tl.exp(-x))


@triton.jit
def _activation_kernel(x, out, x_stride, width, activation: tl.constexpr, is_gate: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    is_within = columns < width
    dtype: tl.constexpr = out.dtype.element_ty
    first = x + row * x_stride + columns
    result = rounded(activated(tl.load(first, mask=is_within, other=0.0).to(tl.float32), activation), dtype)
    if is_gate:
        other = tl.load(first + width, mask=is_within, other=0.0).to(tl.float32)
        result = rounded(result.to(tl.float32) * other, dtype)
    tl.store(out + row * width + columns, result, mask=is_within)
