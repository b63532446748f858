"""Skinny GEMM benchmark of the GPU, on tiny shapes."""

import pytest
import torch

from rayinfer.benchmark.gpu.skinny_gemm import ALL_PRODUCTS, ProductShape, ProductSweep, measure_product, product_shapes

TINY = ProductSweep(matrices=[(24, 16)], rows=(1, 2), dtype=torch.float32, cold_bytes=1 << 13, num_repeats=1)


def test_every_product_is_measured_beside_torchs(device):
    rows = [measure_product(device, TINY, shape, copied=1e9) for shape in product_shapes(TINY)]
    assert [(row.outputs, row.inputs, row.num_rows) for row in rows] == [(24, 16, 1), (24, 16, 2)]
    for row in rows:
        assert row.share_of_copy == pytest.approx(24 * 16 * 4 / row.seconds / 1e9)
        assert row.torch_share_of_copy == pytest.approx(24 * 16 * 4 / row.torch_seconds / 1e9)


def test_the_matrices_are_those_of_the_models_that_are_measured():
    shapes = product_shapes(ALL_PRODUCTS)
    assert len(shapes) == 2 * 5 * 3
    assert ProductShape(4096, 1024, 1) in shapes  # queries, keys and values of the small one
    assert ProductShape(2 * 12_288, 4096, 4) in shapes  # gate and up of the large one
    assert ProductShape(151_936, 4096, 2) in shapes
