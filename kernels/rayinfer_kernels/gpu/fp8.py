"""Products in eight bits: rows are scaled and rounded in one launch, and the tensor cores multiply them as they are."""

import torch

from rayinfer_kernels.gpu.language import next_power_of_2, tl, triton
from rayinfer_kernels.gpu.rounding import rounded
from rayinfer_kernels.gpu.tuning import row_warps
from rayinfer_kernels.packed_weight import PackedWeight
from rayinfer_kernels.reference import float8

_LIMIT = tl.constexpr(float8.LIMIT)
_SMALLEST = tl.constexpr(float8.SMALLEST)


def quantize_rows(x: torch.Tensor) -> float8.Float8Rows:
    """See `float8.quantize_rows`: x [num_rows, width] of any float type."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    num_rows, width = x.shape
    padded = -(-width // float8.MULTIPLE) * float8.MULTIPLE
    numbers = torch.empty((num_rows, padded), dtype=float8.DTYPE, device=x.device)
    scales = torch.empty(num_rows, dtype=torch.float32, device=x.device)
    if num_rows:
        block = next_power_of_2(padded)
        _quantize_kernel[(num_rows,)](
            *(x, numbers, scales, x.stride(0), width, padded), BLOCK=block, num_warps=row_warps(block)
        )
    return float8.Float8Rows(numbers, scales)


def linear(x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """x W^T + bias for a weight of eight bits: x [..., in_features] -> [..., outputs], summed in float32."""
    assert weight.scales is not None, "a weight of eight bits has scales"
    rows = quantize_rows(x.reshape(-1, x.shape[-1]))
    product = _multiply(rows, weight.panels, weight.scales)
    if product.shape[1] != weight.num_rows:  # of outputs that were filled up
        product = product[:, : weight.num_rows]
    out = product.to(x.dtype)
    return (out if bias is None else out + bias).view(*x.shape[:-1], weight.num_rows)


def _multiply(rows: float8.Float8Rows, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    if not rows.numbers.is_cuda:
        return float8.multiply(rows, weight, scales).to(torch.bfloat16)
    # Scales by rows are there for results in bfloat16 only.
    return torch._scaled_mm(
        *(rows.numbers, weight.T, rows.scales[:, None], scales[None, :]), out_dtype=torch.bfloat16, use_fast_accum=True
    )


@triton.jit
def _quantize_kernel(x, numbers, scales, x_stride, width, padded, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    values = tl.load(x + row * x_stride + columns, mask=columns < width, other=0.0).to(tl.float32)
    is_finite = tl.sum(((values - values) != 0.0).to(tl.int32), 0) == 0
    largest = tl.max(tl.abs(tl.where(is_finite, values, 0.0)), 0)
    counts = largest >= _SMALLEST
    inverse = tl.where(counts, tl.div_rn(_LIMIT, tl.where(counts, largest, 1.0)), 0.0)
    scaled = tl.where(is_finite, values * inverse, 0.0)
    scaled = tl.minimum(tl.maximum(scaled, -_LIMIT), _LIMIT)
    tl.store(numbers + row * padded + columns, rounded(scaled, tl.float8e4nv), mask=columns < padded)
    scale = tl.where(counts, tl.div_rn(largest, _LIMIT), 0.0)
    tl.store(scales + row, tl.where(is_finite, scale, float("nan")))
