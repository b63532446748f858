"""Kernel benchmarks of the GPU, on tiny shapes."""

from dataclasses import replace

import pytest
import torch

from rayinfer.benchmark.gpu.decode_kernel import DecodeSweep, decode_shapes, measure_decode_kernel
from rayinfer.benchmark.gpu.skinny_gemm import ALL_PRODUCTS, ProductShape, ProductSweep, measure_product, product_shapes

COPIED = 1e9  # bytes a second
TINY = DecodeSweep(
    groups=(2, 5),
    contexts=(20, 40),
    batches=(1, 3),
    num_kv_heads=1,
    head_dim=64,
    dtype=torch.float32,
    cache_dtype=torch.float32,
    max_pool_bytes=50_000,
    cold_bytes=30_000,
    num_repeats=1,
)
TINY_PRODUCTS = ProductSweep(matrices=[(24, 16)], rows=(1, 2), dtype=torch.float32, cold_bytes=1 << 13, num_repeats=1)


def test_every_combination_that_fits_gets_a_row(device):
    rows = [measure_decode_kernel(device, TINY, shape, COPIED) for shape in decode_shapes(TINY)]
    assert [(row.group, row.context, row.batch) for row in rows] == [
        (group, context, batch) for group in (2, 5) for context, batch in ((20, 1), (20, 3), (40, 1))
    ]  # three contexts of 40 take 61,440 bytes
    first = rows[0]
    assert first.num_bytes == 2 * 20 * 64 * 4 + 2 * 2 * 64 * 4
    assert first.share_of_copy == first.bytes_per_s / COPIED
    assert first.bytes_per_s == first.num_bytes / first.seconds


def test_eight_bits_are_half_of_sixteen(device):
    sweep = replace(TINY, groups=(2,), contexts=(16,), batches=(1,), dtype=torch.bfloat16)
    (shape,) = decode_shapes(sweep)
    wide, narrow = (
        measure_decode_kernel(device, replace(sweep, cache_dtype=dtype), shape, COPIED).num_bytes
        for dtype in (torch.bfloat16, torch.float8_e4m3fn)
    )
    queries = 2 * 2 * 64 * 2
    assert narrow - queries == (wide - queries) / 2


def test_every_product_is_measured_beside_torchs(device):
    rows = [measure_product(device, TINY_PRODUCTS, shape, COPIED) for shape in product_shapes(TINY_PRODUCTS)]
    assert [(row.outputs, row.inputs, row.num_rows) for row in rows] == [(24, 16, 1), (24, 16, 2)]
    for row in rows:
        assert row.share_of_copy == pytest.approx(24 * 16 * 4 / row.seconds / COPIED)
        assert row.torch_share_of_copy == pytest.approx(24 * 16 * 4 / row.torch_seconds / COPIED)


def test_the_matrices_are_those_of_the_measured_models():
    shapes = product_shapes(ALL_PRODUCTS)
    assert len(shapes) == 2 * 5 * 3
    assert {ProductShape(4096, 1024, 1), ProductShape(2 * 12_288, 4096, 4), ProductShape(151_936, 4096, 2)} < set(
        shapes
    )
