"""Skinny GEMM: products of a few rows with a matrix, which is read once, at the speed of memory.

One request's step is nothing but such products. The norm before a product, the gate behind it and the residual sum are
fused into it, since launches would dominate. No tensor cores are used: for up to four rows they gain nothing.
"""

from typing import NamedTuple

import torch

from rayinfer_kernels.gpu.activations import activated
from rayinfer_kernels.gpu.language import (
    gdc_launch_dependents,
    gdc_wait,
    next_power_of_2,
    supports_pdl,
    tl,
    triton,
)
from rayinfer_kernels.gpu.rounding import rounded
from rayinfer_kernels.gpu.tuning import MAX_SKINNY_ROWS, NUM_MULTIPROCESSORS, skinny_gemm_tuning
from rayinfer_kernels.layer_stack import PackedLinear
from rayinfer_kernels.packed_weight import PackedWeight, WeightFormat


class Norm(NamedTuple):
    """An RMS norm of the rows before they are multiplied."""

    weight: torch.Tensor  # [in_features]
    eps: float


def is_skinny(x: torch.Tensor) -> bool:
    """Return whether rows [num_rows, in_features] are few, and of a type whose last digits may depend on that."""
    return x.dim() == 2 and len(x) <= MAX_SKINNY_ROWS and x.dtype.itemsize == 2


def skinny_gemm(
    x: torch.Tensor,
    linear: PackedLinear,
    *,
    norm: Norm | None = None,
    gate: str | None = None,
    residual: torch.Tensor | None = None,
    num_multiprocessors: int = NUM_MULTIPROCESSORS,
) -> torch.Tensor:
    """Multiply at most MAX_SKINNY_ROWS rows: x [num_rows, in_features] -> [num_rows, out_features], summed in float32.

    Rows are normed first; a `gate` (silu or gelu_tanh) takes the first half of the outputs to weigh the second;
    results are added in place to `residual`, which shares no memory with x and is then what is returned. A plain weight
    is [out_features, in_features]; one of eight bits multiplies rows as they are. Between norm, product and sum nothing
    is rounded. Weights, norm and bias are read before the launch in front has ended: it must not be what writes them.
    Raises ValueError for more rows, for another format, and for a residual of another shape or type.
    """
    x = x if x.stride(-1) == 1 else x.contiguous()
    weight, scales, (num_outputs, in_features) = _plain(linear.weight)
    num_rows, num_results = len(x), num_outputs // (2 if gate else 1)
    if num_rows > MAX_SKINNY_ROWS or x.shape[1] != in_features:
        raise ValueError(f"x must be at most {MAX_SKINNY_ROWS} rows of {in_features}, got {tuple(x.shape)}")
    out = x.new_empty((num_rows, num_results)) if residual is None else residual
    if out.shape != (num_rows, num_results) or out.dtype != x.dtype or out.stride(-1) != 1:
        raise ValueError(f"results {(num_rows, num_results)} of {x.dtype} cannot be added to {tuple(out.shape)}")
    if not out.numel():
        return out
    rows = next_power_of_2(num_rows)
    tuning = skinny_gemm_tuning(
        rows, num_results, in_features, is_gated=gate is not None, num_multiprocessors=num_multiprocessors
    )
    is_copy = isinstance(linear.weight, torch.Tensor) and weight is not linear.weight  # made by the launch in front
    pdl = supports_pdl(x.device) and not is_copy
    _skinny_gemm_kernel[(-(-num_results // tuning.num_columns),)](
        *(x, weight, scales, linear.bias, None if norm is None else norm.weight, out),
        *(num_rows, x.stride(0), weight.stride(0), out.stride(0), 0.0 if norm is None else norm.eps),
        IN=in_features,
        RESULTS=num_results,
        GATE=gate,
        ADDS=residual is not None,
        ROWS=rows,
        COLUMNS=tuning.num_columns,
        INPUTS=tuning.num_inputs,
        PDL=pdl,
        launch_pdl=pdl,
        num_warps=tuning.num_warps,
    )
    return out


def _plain(weight: PackedWeight | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, tuple[int, int]]:
    """Its rows, their scales, and how many rows of how many numbers it has."""
    if isinstance(weight, torch.Tensor):
        return (weight if weight.stride(-1) == 1 else weight.contiguous()), None, (weight.shape[0], weight.shape[1])
    if weight.format is not WeightFormat.FLOAT8_DYNAMIC:
        raise ValueError(f"skinny_gemm does not support weights in {weight.format.name}")
    return weight.panels, weight.scales, (weight.num_rows, weight.in_features)


@triton.jit
def _skinny_gemm_kernel(
    x,  # [num_rows, IN]
    weight,  # [RESULTS, IN]; of a gate, and as many rows again behind them
    scales,  # one for each row of the weight, or None
    bias,
    norm,  # [IN], or None
    out,  # [num_rows, RESULTS]
    num_rows,
    x_stride,
    weight_stride,
    out_stride,
    eps,
    IN: tl.constexpr,
    RESULTS: tl.constexpr,
    GATE: tl.constexpr,
    ADDS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INPUTS: tl.constexpr,
    PDL: tl.constexpr,
):
    """COLUMNS results of all rows: each thread sums eight neighboring inputs at a time, its sums are added at the end.

    The weights of the next INPUTS are loaded while these are multiplied, and the first ones before the kernel that
    writes `x` has ended.
    """
    if PDL:
        gdc_launch_dependents()
    dtype: tl.constexpr = out.dtype.element_ty
    rows = tl.arange(0, ROWS)[:, None, None]
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inputs = tl.arange(0, INPUTS)[None, None, :]
    is_row, is_column = rows < num_rows, (columns < RESULTS)[None, :, None]
    row_pointers = x + rows * x_stride + inputs
    weight_pointers = weight + columns.to(tl.int64)[None, :, None] * weight_stride + inputs
    up_pointers = weight + (columns.to(tl.int64) + RESULTS)[None, :, None] * weight_stride + inputs
    sums = tl.zeros((ROWS, COLUMNS, INPUTS // 8), tl.float32)
    ups = tl.zeros((ROWS, COLUMNS, INPUTS // 8), tl.float32)
    squares = tl.zeros((ROWS, 1, INPUTS // 8), tl.float32)
    taken = tl.load(weight_pointers, mask=is_column & (inputs < IN), other=0.0)
    if GATE is not None:
        up = tl.load(up_pointers, mask=is_column & (inputs < IN), other=0.0)
    if PDL:
        gdc_wait()
    for start in tl.range(0, IN, INPUTS):
        is_input, is_next = start + inputs < IN, is_column & (start + INPUTS + inputs < IN)
        next_taken = tl.load(weight_pointers + start + INPUTS, mask=is_next, other=0.0)
        if GATE is not None:
            next_up = tl.load(up_pointers + start + INPUTS, mask=is_next, other=0.0)
        values = tl.load(row_pointers + start, mask=is_row & is_input, other=0.0).to(tl.float32)
        if norm is not None:
            squares += tl.sum((values * values).reshape(ROWS, 1, INPUTS // 8, 8), 3)
            values *= tl.load(norm + start + inputs, mask=is_input, other=0.0).to(tl.float32)
        sums += tl.sum((values * taken.to(tl.float32)).reshape(ROWS, COLUMNS, INPUTS // 8, 8), 3)
        taken = next_taken
        if GATE is not None:
            ups += tl.sum((values * up.to(tl.float32)).reshape(ROWS, COLUMNS, INPUTS // 8, 8), 3)
            up = next_up
    length = tl.full((ROWS, 1), 1.0, tl.float32)
    if norm is not None:
        length = tl.rsqrt(tl.sum(squares, 2) / IN + eps)
    results = _finished(tl.sum(sums, 2) * length, columns, scales, bias, 0, RESULTS)
    if GATE is not None:
        others = _finished(tl.sum(ups, 2) * length, columns, scales, bias, RESULTS, RESULTS)
        results = activated(results, GATE) * others
    pointers = out + tl.arange(0, ROWS)[:, None] * out_stride + columns[None, :]
    is_result = (tl.arange(0, ROWS) < num_rows)[:, None] & (columns < RESULTS)[None, :]
    if ADDS:
        results += tl.load(pointers, mask=is_result, other=0.0).to(tl.float32)
    tl.store(pointers, rounded(results, dtype), mask=is_result)


@triton.jit
def _finished(sums, columns, scales, bias, first, RESULTS: tl.constexpr):
    """Sums [rows, columns] of the outputs from `first` on, with their scales and biases."""
    is_column = columns < RESULTS
    if scales is not None:
        sums *= tl.load(scales + first + columns, mask=is_column, other=0.0)[None, :]
    if bias is not None:
        sums += tl.load(bias + first + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
    return sums
