import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from rayinfer_kernels import reference
from rayinfer_kernels.packed_weight import PrefetchDistances, WeightFormat, pack
from rayinfer_kernels.quantized_weight import pack_quantized, quantize

TOLERANCES = {torch.float32: {"atol": 1e-4, "rtol": 1e-5}, torch.bfloat16: {"atol": 0.02, "rtol": 0.01}}
# The last one is cut into blocks whose even share of the inputs would end within a pair.
SHAPES = [(32, 2), (64, 576), (1, 8), (33, 16), (95, 41), (7, 1), (160, 1645)]
# Every size of a tile and several tiles, in registers and widened before, in one block of rows and in two.
NUMBERS_OF_ROWS = [*range(15), 24, 39, 40, 100]


@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
def test_packed_products_equal_plain_ones_on_every_instruction_set(isa_kernels, dtype, out_features, in_features):
    weight = (torch.randn(out_features, in_features) * in_features**-0.5).to(dtype)
    bias = torch.randn(out_features).to(dtype)
    packed = pack(weight.clone())
    for rows in NUMBERS_OF_ROWS:
        x = torch.randn(rows, in_features + 10).to(dtype)[:, 3 : 3 + in_features]
        for added in (None, bias):
            expected = F.linear(x.float(), weight.float(), None if added is None else added.float()).to(dtype)
            torch.testing.assert_close(isa_kernels.packed_linear(x, packed, added), expected, **TOLERANCES[dtype])
            torch.testing.assert_close(reference.packed_linear(x, packed, added), expected, **TOLERANCES[dtype])


@pytest.mark.parametrize("out_features", [1, 33, 192])
@pytest.mark.parametrize("in_features", [96, 1645])
def test_a_row_is_multiplied_alike_to_the_bit_alone_in_a_batch_and_on_any_number_of_threads(
    isa_kernels, dtype, out_features, in_features
):
    # So many that threads have rows of their own.
    x, packed = torch.randn(295, in_features).to(dtype), pack(torch.randn(out_features, in_features).to(dtype))
    torch.set_num_threads(1)
    together = isa_kernels.packed_linear(x, packed, None)
    for num_threads in (2, 3, 7):
        torch.set_num_threads(num_threads)
        assert torch.equal(isa_kernels.packed_linear(x, packed, None), together)
    for row, count in itertools.product(range(0, 60, 19), (1, 2, 3, 5, 6, 8, 12, 13, 45)):
        part = slice(row, row + count)
        assert torch.equal(isa_kernels.packed_linear(x[part], packed, None), together[part]), count


@pytest.mark.parametrize("out_features", [46080, 46081])  # whole cache lines, and rows that begin within one
def test_results_of_more_bytes_than_caches_hold_are_the_same_bits(isa_kernels, dtype, out_features):
    num_rows = (16 << 20) // (out_features * dtype.itemsize) + 1
    x, packed = torch.randn(num_rows, 3).to(dtype), pack(torch.randn(out_features, 3).to(dtype))
    results = isa_kernels.packed_linear(x, packed, None)
    for row in range(0, num_rows, 7):
        assert torch.equal(results[row : row + 7], isa_kernels.packed_linear(x[row : row + 7], packed, None)), row


@pytest.mark.parametrize(
    "weight_format", [None, WeightFormat.INT8, WeightFormat.INT8_DYNAMIC, WeightFormat.INT4_DYNAMIC], ids=str
)
def test_a_product_is_the_same_bits_however_far_ahead_its_weight_is_prefetched(isa_kernels, dtype, weight_format):
    x, weight = torch.randn(20, 640).to(dtype), torch.randn(95, 640)
    packed = pack(weight.to(dtype)) if weight_format is None else pack_quantized(quantize(weight, weight_format))
    expected = [isa_kernels.packed_linear(x[:num_rows], packed, None) for num_rows in range(1, 21)]
    for distance in (64, 100, 24576, 1 << 30):
        packed.prefetch = PrefetchDistances(distance, 2 * distance - 1)
        assert packed.prefetch == (distance, 2 * distance - 1)
        for num_rows, product in enumerate(expected, start=1):
            assert torch.equal(isa_kernels.packed_linear(x[:num_rows], packed, None), product), (distance, num_rows)


@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
def test_rows_of_a_packed_weight_are_those_of_the_weight(dtype, out_features, in_features):
    weight = torch.randn(out_features, in_features).to(dtype)
    indices = torch.randint(out_features, (20,))
    assert torch.equal(pack(weight.clone()).rows(indices), weight[indices])


@pytest.mark.parametrize(("out_features", "in_features"), [(32, 2), (1, 8), (33, 16), (95, 41), (192, 576)])
@pytest.mark.parametrize("rows", [0, 1, 5, 13, 50])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_products_equal_plain_ones_on_every_instruction_set(
    isa_kernels, dtype, rows, out_features, in_features, activation
):
    x = torch.randn(rows, in_features).to(dtype)
    weight = (torch.randn(2 * out_features, in_features) * in_features**-0.5).to(dtype)
    bias, packed = torch.randn(2 * out_features).to(dtype), pack(weight.clone(), is_gated=True)
    gate_function = F.silu if activation == "silu" else partial(F.gelu, approximate="tanh")
    for added in (None, bias):
        gate, up = F.linear(x.float(), weight.float(), None if added is None else added.float()).chunk(2, -1)
        expected = (gate_function(gate) * up).to(dtype)
        actual = isa_kernels.packed_gated_linear(x, packed, added, activation)
        torch.testing.assert_close(actual, expected, **TOLERANCES[dtype])
    assert torch.equal(packed.rows(torch.arange(2 * out_features)), weight)


@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
@pytest.mark.parametrize("num_rows", [0, 1, 40])
def test_rows_are_taken_of_packed_weights_of_every_format_that_has_an_embedding(
    isa_kernels, dtype, num_rows, out_features, in_features
):
    weight = torch.randn(out_features, in_features).to(dtype)
    indices = torch.randint(out_features, (num_rows,))
    assert torch.equal(isa_kernels.packed_embedding(pack(weight.clone()), indices, dtype), weight[indices])
    for format in (WeightFormat.INT8, WeightFormat.INT8_DYNAMIC, WeightFormat.INT4_DYNAMIC):
        quantized = quantize(weight, format)
        actual = isa_kernels.packed_embedding(pack_quantized(quantized), indices, dtype)
        assert torch.equal(actual, quantized.dequantize()[indices].to(dtype))


def test_packing_takes_no_memory_beside_the_weight(dtype):
    weight = torch.randn(64 * 32 * 3, 64).to(dtype)
    assert pack(weight).panels.data_ptr() == weight.data_ptr()
