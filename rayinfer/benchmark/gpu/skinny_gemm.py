"""Skinny GEMM benchmark: our kernel beside torch's, both as shares of a plain copy's bandwidth."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from rayinfer.benchmark.gpu.model_shapes import SHAPES
from rayinfer.benchmark.gpu.timing import COLD_BYTES, seconds_per_call
from rayinfer_kernels.gpu.skinny_gemm import skinny_gemm
from rayinfer_kernels.layer_stack import PackedLinear


class ProductShape(NamedTuple):
    """A matrix [outputs, inputs], and the rows that it multiplies."""

    outputs: int
    inputs: int
    num_rows: int


@dataclass(frozen=True, kw_only=True)
class ProductSweep:
    """Measured shapes: every matrix of some models' layers, and their heads."""

    matrices: Sequence[tuple[int, int]]  # outputs, inputs
    rows: Sequence[int] = (1, 2, 4)
    dtype: torch.dtype = torch.bfloat16
    cold_bytes: int = COLD_BYTES
    num_repeats: int = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductRow:
    """A product's figures; a share is 1 where the matrix is read as fast as a copy reads and writes."""

    outputs: int
    inputs: int
    num_rows: int
    seconds: float  # of one product, the median
    torch_seconds: float
    share_of_copy: float
    torch_share_of_copy: float


def matrices_of(shape: Mapping[str, Any]) -> list[tuple[int, int]]:
    """List outputs and inputs of a model's products: queries, keys and values; output; gate and up; down; head."""
    hidden, feed_forward = shape["hidden_size"], shape["intermediate_size"]
    head_dim = shape.get("head_dim", hidden // shape["num_attention_heads"])
    queries, keys = (head_dim * shape[name] for name in ("num_attention_heads", "num_key_value_heads"))
    return [
        (queries + 2 * keys, hidden),
        (hidden, queries),
        (2 * feed_forward, hidden),
        (hidden, feed_forward),
        (shape["vocab_size"], hidden),
    ]


ALL_PRODUCTS = ProductSweep(
    matrices=[each for name in ("Qwen3-0.6B", "Qwen3-8B") for each in matrices_of(SHAPES[name])]
)


def product_shapes(sweep: ProductSweep) -> list[ProductShape]:
    """Return all products of a sweep."""
    return [ProductShape(*matrix, rows) for matrix, rows in itertools.product(sweep.matrices, sweep.rows)]


def measure_product(device: torch.device, sweep: ProductSweep, shape: ProductShape, copied: float) -> ProductRow:
    """Measure a product beside a copy's `copied` bytes a second; without a GPU the times mean nothing."""
    outputs, inputs, num_rows = shape
    num_bytes = outputs * inputs * sweep.dtype.itemsize
    num_copies = max(1, min(64, sweep.cold_bytes // num_bytes))
    weights = torch.randn(num_copies, outputs, inputs, device=device, dtype=sweep.dtype)
    x = torch.randn(num_rows, inputs, device=device, dtype=sweep.dtype)

    def seconds(multiply: Callable[[torch.Tensor], object]) -> float:
        calls = [lambda weight=weight: multiply(weight) for weight in weights]
        return seconds_per_call(calls, device, sweep.num_repeats)

    ours = seconds(lambda weight: skinny_gemm(x, PackedLinear(weight, None)))
    torchs = seconds(lambda weight: F.linear(x, weight))
    return ProductRow(
        outputs=outputs,
        inputs=inputs,
        num_rows=num_rows,
        seconds=ours,
        torch_seconds=torchs,
        share_of_copy=num_bytes / ours / copied,
        torch_share_of_copy=num_bytes / torchs / copied,
    )
