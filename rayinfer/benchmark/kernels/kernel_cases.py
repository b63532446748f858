"""Operations of the roofline benchmark: inputs in models' shapes, operations and bytes, and torch's own counterpart."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from rayinfer_kernels import ops

ROWS = (1, 4, 16, 64, 512)
# Inputs and outputs of linear layers: SmolLM2-135M's, and those of a model that is 1,536 wide.
SHAPES = ((576, 3072), (1536, 576), (576, 49152), (1536, 17920), (8960, 1536))
FORMATS = {
    "float32": ops.WeightFormat.FLOAT32,
    "bfloat16": ops.WeightFormat.BFLOAT16,
    "int8": ops.WeightFormat.INT8,
    "int8-dynamic": ops.WeightFormat.INT8_DYNAMIC,
    "int4": ops.WeightFormat.INT4_DYNAMIC,
}
CPU = torch.device("cpu")
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 9, 3, 64, 16
DECODE_REQUESTS, CONTEXT = 16, 512
ELEMENTWISE_ROWS, ELEMENTWISE_WIDTH = 256, 1536
EPS = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Sizes of the cases; tests take smaller ones."""

    rows: Sequence[int] = ROWS
    shapes: Sequence[tuple[int, int]] = SHAPES
    formats: Sequence[str] = tuple(FORMATS)
    cold_bytes: int = 96 * 2**20  # of the copies of what one call reads: more than caches hold
    context: int = CONTEXT
    elementwise: tuple[int, int] = (ELEMENTWISE_ROWS, ELEMENTWISE_WIDTH)


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelCase:
    """One operation on one shape; `run` and `run_torch` are called many times, each time on the next copy."""

    operation: str
    shape: str
    number: str  # format of what is multiplied, or type of what is changed
    num_rows: int
    operations: float  # multiplications and additions, 0 where only bytes count
    num_bytes: float  # that have to be read and written once
    peak: torch.dtype | None  # whose rate limits it
    run: Callable[[], object]
    run_torch: Callable[[], object] | None = None


def kernel_cases(sizes: Sizes) -> Iterator[KernelCase]:
    """Yield all cases, each with inputs made for it."""
    for format, shape in itertools.product(sizes.formats, sizes.shapes):
        yield from _products(format, *shape, sizes)
    for dtype in (torch.float32, torch.bfloat16):
        yield _attention("attention, decode", dtype, [1] * DECODE_REQUESTS, sizes)
        yield _attention("attention, prefill", dtype, [sizes.context], sizes)
    for dtype in (torch.float32, torch.bfloat16):
        yield from _elementwise(dtype, *sizes.elementwise)


def _products(format: str, in_features: int, out_features: int, sizes: Sizes) -> Iterator[KernelCase]:
    dtype = torch.float32 if format == "float32" else torch.bfloat16
    plain = torch.randn(out_features, in_features, dtype=dtype)
    packed = _pack(plain, format)
    tensors = [packed.panels, *(each for each in (packed.scales, packed.sums) if each is not None)]
    num_bytes = sum(tensor.nbytes for tensor in tensors)
    weights = itertools.cycle([packed, *(_copy(packed) for _ in range(sizes.cold_bytes // num_bytes))])
    copies = itertools.cycle([plain, *(plain.clone() for _ in range(sizes.cold_bytes // plain.nbytes))])
    peak = torch.int8 if format in ("int8-dynamic", "int4") else dtype
    for rows in sizes.rows:
        x = torch.randn(rows, in_features).to(dtype)
        yield KernelCase(
            operation="linear",
            shape=f"{in_features} to {out_features}",
            number=format,
            num_rows=rows,
            operations=2.0 * rows * in_features * out_features,
            num_bytes=num_bytes + rows * (in_features + out_features) * x.element_size(),
            peak=peak,
            run=lambda x=x: ops.linear(x, next(weights)),  # type: ignore[misc]
            run_torch=(lambda x=x: F.linear(x, next(copies))) if format == str(dtype)[6:] else None,  # type: ignore[misc]
        )


def _pack(weight: torch.Tensor, format: str) -> ops.PackedWeight:
    if not FORMATS[format].is_quantized:
        packed = ops.pack_weight(weight.clone())
        assert packed is not None, "kernels are configured"
        return packed
    return ops.pack_quantized(ops.quantize(weight.float(), FORMATS[format]))


def _copy(weight: ops.PackedWeight) -> ops.PackedWeight:
    return ops.PackedWeight(
        format=weight.format,
        panels=weight.panels.clone(),
        in_features=weight.in_features,
        out_features=weight.out_features,
        scales=weight.scales,
        sums=weight.sums,
    )


def _attention(operation: str, dtype: torch.dtype, new_tokens: list[int], sizes: Sizes) -> KernelCase:
    context = sizes.context
    blocks = (context + BLOCK_SIZE - 1) // BLOCK_SIZE
    num_requests, num_tokens = len(new_tokens), sum(new_tokens)
    read = 2 * num_requests * context * NUM_KV_HEADS * HEAD_DIM * dtype.itemsize
    caches = []
    for _ in range(max(1, sizes.cold_bytes // read if num_requests > 1 else 1)):
        cache = ops.allocate_kv_cache(num_requests * blocks, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM, dtype, CPU)
        slots = torch.arange(num_requests * blocks * BLOCK_SIZE)
        keys, values = torch.randn(2, len(slots), NUM_KV_HEADS, HEAD_DIM).to(dtype)
        ops.write_kv(keys, values, cache, slots)
        caches.append(cache)
    query = torch.randn(num_tokens, NUM_HEADS, HEAD_DIM).to(dtype)
    tables = torch.arange(num_requests * blocks, dtype=torch.int32).view(num_requests, blocks)
    starts = torch.tensor([0, *itertools.accumulate(new_tokens)], dtype=torch.int32)
    lengths = torch.full((num_requests,), context, dtype=torch.int32)
    pairs = sum(new * (context - new) + new * (new + 1) / 2 for new in new_tokens)
    turns = itertools.cycle(caches)
    return KernelCase(
        operation=operation,
        shape=f"{num_requests} x {context} tokens, {NUM_HEADS}/{NUM_KV_HEADS} heads of {HEAD_DIM}",
        number=str(dtype)[6:],
        num_rows=num_tokens,
        operations=4.0 * NUM_HEADS * HEAD_DIM * pairs,
        num_bytes=read + 2 * query.nbytes,
        peak=dtype,
        run=lambda: ops.paged_attention(query, next(turns), tables, starts, lengths, HEAD_DIM**-0.5),
    )


def _elementwise(dtype: torch.dtype, rows: int, width: int) -> Iterator[KernelCase]:
    x, double = torch.randn(rows, width).to(dtype), torch.randn(rows, 2 * width).to(dtype)
    weight, bias = torch.randn(2, width).to(dtype)
    both: dict[str, tuple[Callable[[], object], Callable[[], object], torch.Tensor]] = {
        "gelu": (lambda: ops.gelu(x), lambda: F.gelu(x), x),
        "gelu_tanh": (lambda: ops.gelu_tanh(x), lambda: F.gelu(x, approximate="tanh"), x),
        "silu_and_mul": (
            lambda: ops.silu_and_mul(double),
            lambda: F.silu(double[:, :width]) * double[:, width:],
            double,
        ),
        "layer_norm": (
            lambda: ops.layer_norm(x, weight, bias, EPS),
            lambda: F.layer_norm(x, (width,), weight, bias, EPS),
            x,
        ),
        "rms_norm": (lambda: ops.rms_norm(x, weight, EPS), lambda: F.rms_norm(x, (width,), weight, EPS), x),
    }
    for name, (run, run_torch, read) in both.items():
        yield KernelCase(
            operation=name,
            shape=str(width),
            number=str(dtype)[6:],
            num_rows=rows,
            operations=0.0,
            num_bytes=read.nbytes + x.nbytes,
            peak=None,
            run=run,
            run_torch=run_torch,
        )
