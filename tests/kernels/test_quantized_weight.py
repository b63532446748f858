import itertools

import pytest
import torch
import torch.nn.functional as F

from rayinfer_kernels import ops, reference
from rayinfer_kernels.int4_blocks import GROUP_SIZE
from rayinfer_kernels.packed_weight import GroupOffsets, WeightFormat
from rayinfer_kernels.quantized_weight import QuantizedWeight, pack_quantized, quantize, unpack_quantized
from rayinfer_kernels.reference.quantized_rows import quantize_rows

FORMATS = [WeightFormat.INT8, WeightFormat.INT8_DYNAMIC, WeightFormat.INT4_DYNAMIC]
SHAPES = [(32, 32), (64, 576), (1, 8), (33, 16), (95, 41), (7, 1), (130, 1000)]


@pytest.fixture(params=FORMATS, ids=lambda each: each.name)
def format(request) -> WeightFormat:
    return request.param


@pytest.mark.parametrize("shape", SHAPES)
def test_rounding_is_never_further_off_than_half_a_step(format, shape):
    weight = torch.randn(shape) * torch.rand(shape[0], 1)
    quantized = quantize(weight, format)
    if format is WeightFormat.INT4_DYNAMIC:
        assert quantized.scales.shape == (shape[0], -(-shape[1] // GROUP_SIZE))
        assert torch.equal(quantized.scales, quantized.scales.bfloat16().float())
        # A scale that was rounded down leaves the largest numbers outside, by less than its rounding.
        steps = quantized.scales.repeat_interleave(GROUP_SIZE, 1)[:, : shape[1]] * (0.5 + 7 * 2**-8)
    else:
        assert quantized.scales.shape == shape[:1]
        steps = quantized.scales[:, None] * 0.5001
    assert quantized.q.dtype == torch.int8
    assert ((quantized.dequantize() - weight).abs() <= steps).all()


def test_a_weight_of_multiples_of_its_scales_is_kept_exactly(format):
    q = torch.randint(-7, 8, (40, 96), dtype=torch.int8)
    q[:, ::32] = 7 if format is WeightFormat.INT4_DYNAMIC else 127
    weight = q * 0.125
    assert torch.equal(quantize(weight, format).dequantize(), weight)
    assert torch.equal(quantize(weight, format).q, q)


def test_zeros_stay_zeros_and_nothing_else_comes_of_them(format):
    quantized = quantize(torch.zeros(3, 40), format)
    assert not quantized.q.any()
    assert not quantized.scales.any()
    assert not quantized.dequantize().any()


@pytest.mark.parametrize("shape", [*SHAPES, (3, 34, 70), (2, 2, 66, 33)])
@pytest.mark.parametrize("is_gated", [False, True])
def test_packing_loses_nothing(format, shape, is_gated):
    shape = (*shape[:-2], shape[-2] * (2 if is_gated else 1), shape[-1])
    quantized = quantize(torch.randn(shape), format)
    before = quantized.q.clone()
    packed = pack_quantized(quantized, is_gated=is_gated)
    assert torch.equal(quantized.q, before)
    assert packed.out_features * (1 + is_gated) == shape[-2]
    for index in itertools.product(*map(range, shape[:-2])):
        layer, expected, scales = packed, quantized.q, quantized.scales
        for each in index:
            layer, expected, scales = layer.layer(each), expected[each], scales[each]
        unpacked = unpack_quantized(layer)
        assert torch.equal(unpacked.q, expected)
        assert torch.equal(unpacked.scales, scales)
        indices = torch.randint(shape[-2], (20,))
        dequantized = QuantizedWeight(expected, scales, format).dequantize()
        assert torch.equal(layer.rows(indices), dequantized[indices])
        assert torch.equal(ops.embedding(indices, layer, torch.bfloat16), dequantized[indices].bfloat16())


@pytest.mark.parametrize("shape", [(64, 576), (34, 16), (190, 41), (2, 66, 90)])
@pytest.mark.parametrize("is_gated", [False, True])
def test_packing_loses_no_offset_of_a_group(shape, is_gated):
    quantized = with_offsets(quantize(torch.randn(shape), WeightFormat.INT4_DYNAMIC))
    packed, whole = pack_quantized(quantized, is_gated=is_gated), quantized.dequantize()
    assert not torch.equal(whole, quantized.q * quantized.scales.repeat_interleave(GROUP_SIZE, -1)[..., : shape[-1]])
    layers = [(packed.layer(0), whole[0]), (packed.layer(1), whole[1])] if len(shape) == 3 else [(packed, whole)]
    for layer, expected in layers:
        assert torch.equal(unpack_quantized(layer).dequantize(), expected)
        indices = torch.randint(shape[-2], (20,))
        assert torch.equal(layer.rows(indices), expected[indices])


def test_products_with_offsets_are_near_those_of_the_weight_they_stand_for():
    x, quantized = torch.randn(5, 300), with_offsets(quantize(torch.randn(40, 300), WeightFormat.INT4_DYNAMIC))
    expected = F.linear(x, quantized.dequantize())
    assert (ops.linear(x, pack_quantized(quantized)) - expected).norm() < 0.02 * expected.norm()


def with_offsets(quantized):
    shape = quantized.scales.shape
    offsets = GroupOffsets(
        torch.randint(256, shape, dtype=torch.uint8),
        torch.randint(-128, 128, shape, dtype=torch.int8),
        (torch.rand(shape[:-1]) / 8).bfloat16().float(),
        torch.randn(shape[:-1]).bfloat16().float(),
    )
    return QuantizedWeight(quantized.q, offsets.scales(), quantized.format, offsets)


def test_outputs_that_fill_up_a_panel_are_zero():
    packed = pack_quantized(quantize(torch.randn(2 * 33, 5), WeightFormat.INT8_DYNAMIC), is_gated=True)
    assert packed.panels.shape == (4, 2, 32, 4)
    assert not packed.scales.view(4, 32)[2:, 1:].any()
    assert not packed.sums.view(4, 32)[2:, 1:].any()
    assert not packed.panels[2:, :, 1:].any()


def test_bytes_of_four_bits_lie_as_documented():
    q, scales = torch.randint(-8, 8, (32, 64), dtype=torch.int8), torch.rand(32, 2).bfloat16().float()
    blocks = pack_quantized(QuantizedWeight(q, scales, WeightFormat.INT4_DYNAMIC)).panels
    assert blocks.shape == (1, 2, 576)
    for group, j, n, i in ((0, 0, 0, 0), (0, 3, 31, 2), (1, 2, 17, 3)):
        byte = int(blocks[0, group, (j * 32 + n) * 4 + i])
        assert byte & 15 == q[n, 32 * group + 4 * j + i] + 8
        assert byte >> 4 == q[n, 32 * group + 16 + 4 * j + i] + 8
    kept = blocks[0, 1, 512:].view(torch.bfloat16).float()
    assert kept[2 * 5] == scales[5, 1]
    assert kept[2 * 5 + 1] == scales[21, 1]


def test_rows_are_rounded_to_the_nearest_of_255_numbers():
    x = torch.tensor([[127 * 4.0, -2.0, 6.0, 5.9], [0.0, 0.0, 0.0, 0.0], [1e-35, -1e-36, 0.0, 0.0]])
    rows = quantize_rows(x)
    assert rows.q.tolist() == [[127, 0, 2, 1], [0] * 4, [0] * 4]
    assert rows.scales.tolist() == [[4.0], [0.0], [0.0]]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_spoils_no_other(format, bad):
    x, packed = torch.randn(3, 40), pack_quantized(quantize(torch.randn(9, 40), format))
    expected = reference.packed_linear(x, packed, None)
    x[1, 7] = bad
    actual = reference.packed_linear(x, packed, None)
    assert torch.equal(actual[[0, 2]], expected[[0, 2]])
    assert not actual[1].isfinite().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_near_those_of_the_weight_they_stand_for(format, shape, dtype):
    x, quantized, bias = torch.randn(5, shape[1]).to(dtype), quantize(torch.randn(shape), format), torch.randn(shape[0])
    expected = F.linear(x.float(), quantized.dequantize())
    actual = ops.linear(x, pack_quantized(quantized), bias.to(dtype))
    assert actual.dtype == dtype
    error = (actual.float() - expected - bias.to(dtype).float()).norm()
    assert error < 0.02 * expected.norm() + 0.01 * bias.norm()


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_products_gate_the_products_of_both_halves(format, activation):
    x, weight = torch.randn(4, 70), torch.randn(2 * 41, 70)
    stacked = ops.linear(x, pack_quantized(quantize(weight, format)))
    gated = ops.gated_linear(x, pack_quantized(quantize(weight, format), is_gated=True), None, activation)
    expected = ops.silu_and_mul(stacked) if activation == "silu" else ops.gelu_tanh_and_mul(stacked)
    torch.testing.assert_close(gated, expected)
