"""Norms of rows: one program per row, which it reads once and keeps in registers."""

import torch

from rayinfer_kernels.gpu.language import next_power_of_2, tl, triton
from rayinfer_kernels.gpu.rounding import rounded
from rayinfer_kernels.gpu.tuning import row_warps


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool = False) -> torch.Tensor:
    """See `ops.rms_norm`; x [..., width] may be a slice of wider rows, or of heads within them."""
    heads = _as_heads(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    num_rows, num_heads, width = heads.shape
    if not out.numel():
        return out
    block = next_power_of_2(width)
    _rms_norm_kernel[(num_rows * num_heads,)](
        *(heads, None, weight.contiguous(), out, num_heads, heads.stride(0), heads.stride(1), 0, width, eps),
        block=block,
        unit_offset=unit_offset,
        num_warps=row_warps(block),
    )
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool = False
) -> torch.Tensor:
    """See `ops.add_rms_norm`: both [num_rows, width], rows in one piece each; the residual is changed in place."""
    is_in_one_piece = residual.stride(-1) == 1 or residual.shape[-1] == 1
    if residual.shape != x.shape or residual.dtype != x.dtype or not is_in_one_piece:
        raise ValueError(
            f"the residual is changed in place: it has to be {tuple(x.shape)} of {x.dtype} with rows in one piece,"
            f" got {tuple(residual.shape)} of {residual.dtype}"
        )
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    num_rows, width = x.shape
    if not out.numel():
        return out
    block = next_power_of_2(width)
    _rms_norm_kernel[(num_rows,)](
        *(x, residual, weight.contiguous(), out, 1, x.stride(0), 0, residual.stride(0), width, eps),
        block=block,
        unit_offset=unit_offset,
        num_warps=row_warps(block),
    )
    return out


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """See `ops.layer_norm`."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    num_rows, width = x.shape
    if not out.numel():
        return out
    block = next_power_of_2(width)
    _layer_norm_kernel[(num_rows,)](
        *(x, weight.contiguous(), bias.contiguous(), out, x.stride(0), width, eps),
        block=block,
        num_warps=row_warps(block),
    )
    return out


def _as_heads(x: torch.Tensor) -> torch.Tensor:
    """[num_rows, num_heads, width], numbers of a row behind one another."""
    heads = x if x.dim() == 3 else x.reshape(-1, 1, x.shape[-1])
    return heads if heads.stride(-1) == 1 else heads.contiguous()


@triton.jit
def _rms_norm_kernel(
    x,
    residual,
    weight,
    out,
    num_heads,
    x_row_stride,
    x_head_stride,
    residual_stride,
    width,
    eps,
    block: tl.constexpr,
    unit_offset: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    is_within = columns < width
    dtype: tl.constexpr = out.dtype.element_ty
    offset = (row // num_heads) * x_row_stride + (row % num_heads) * x_head_stride
    values = tl.load(x + offset + columns, mask=is_within, other=0.0).to(tl.float32)
    if residual is not None:
        kept = residual + row * residual_stride + columns
        summed = rounded(values + tl.load(kept, mask=is_within, other=0.0).to(tl.float32), dtype)
        tl.store(kept, summed, mask=is_within)
        values = summed.to(tl.float32)
    mean_square = tl.sum(values * values, 0) / width
    normed = values * tl.rsqrt(mean_square + eps)
    scale = tl.load(weight + columns, mask=is_within, other=0.0).to(tl.float32)
    scaled = normed * (1.0 + scale) if unit_offset else scale * rounded(normed, dtype).to(tl.float32)
    tl.store(out + row * width + columns, rounded(scaled, dtype), mask=is_within)


@triton.jit
def _layer_norm_kernel(x, weight, bias, out, x_stride, width, eps, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    is_within = columns < width
    dtype: tl.constexpr = out.dtype.element_ty
    values = tl.load(x + row * x_stride + columns, mask=is_within, other=0.0).to(tl.float32)
    mean = tl.sum(values, 0) / width
    centered = tl.where(is_within, values - mean, 0.0)
    variance = tl.sum(centered * centered, 0) / width
    scale = tl.load(weight + columns, mask=is_within, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, mask=is_within, other=0.0).to(tl.float32)
    normed = centered * tl.rsqrt(variance + eps) * scale + shift
    tl.store(out + row * width + columns, rounded(normed, dtype), mask=is_within)
