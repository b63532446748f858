import pytest
import torch

from rayinfer_kernels import reference
from rayinfer_kernels.cpu.kernels import CpuKernels
from rayinfer_kernels.packed_weight import GroupOffsets, PackedWeight, WeightFormat, pack
from rayinfer_kernels.quantized_weight import QuantizedWeight, pack_quantized, quantize

DYNAMIC_FORMATS = [WeightFormat.INT8_DYNAMIC, WeightFormat.INT4_DYNAMIC]
TOLERANCES = {torch.float32: {"atol": 1e-3, "rtol": 1e-5}, torch.bfloat16: {"atol": 0.02, "rtol": 0.01}}
# The last one is multiplied in several blocks of inputs, where rows are many.
SHAPES = [(32, 32), (64, 576), (1, 8), (33, 16), (95, 41), (7, 1), (260, 1000), (40, 4307)]
NUMBERS_OF_ROWS = [*range(14), 20]


@pytest.fixture
def every_isa(isa_library, dtype) -> CpuKernels:
    return CpuKernels(isa_library.handle, dtype)


@pytest.fixture(autouse=True)
def one_thread(two_threads):
    torch.set_num_threads(1)  # sharing such small products takes longer than computing them


@pytest.fixture(params=DYNAMIC_FORMATS, ids=lambda each: each.name)
def dynamic(request) -> WeightFormat:
    return request.param


@pytest.fixture(params=[WeightFormat.INT8, *DYNAMIC_FORMATS], ids=lambda each: each.name)
def format(request) -> WeightFormat:
    return request.param


def packed_weight(*shape: int, format: WeightFormat, is_gated: bool = False) -> PackedWeight:
    return pack_quantized(quantize(torch.randn(shape), format), is_gated=is_gated)


def weight_with_offsets(*shape: int) -> QuantizedWeight:
    plain = quantize(torch.randn(shape), WeightFormat.INT4_DYNAMIC)
    offsets = GroupOffsets(
        torch.randint(256, plain.scales.shape, dtype=torch.uint8),
        torch.randint(-128, 128, plain.scales.shape, dtype=torch.int8),
        (torch.rand(shape[0]) / 64).bfloat16().float(),
        torch.randn(shape[0]).bfloat16().float(),
    )
    return QuantizedWeight(plain.q, offsets.scales(), plain.format, offsets)


@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
def test_products_of_small_integers_equal_the_reference_to_the_bit(
    every_isa, dtype, dynamic, out_features, in_features
):
    packed, bias = packed_weight(out_features, in_features, format=dynamic), torch.randn(out_features).to(dtype)
    x = torch.randn(20, in_features + 10).to(dtype)[:, 3 : 3 + in_features]
    plain, biased = (reference.packed_linear(x, packed, added) for added in (None, bias))
    for num_rows in NUMBERS_OF_ROWS:
        rows = x[:num_rows]
        assert torch.equal(every_isa.packed_linear(rows, packed, None), plain[:num_rows]), num_rows
        assert torch.equal(every_isa.packed_linear(rows, packed, bias), biased[:num_rows]), num_rows


@pytest.mark.parametrize(("out_features", "in_features"), [(1, 8), (95, 41), (260, 1000)])
@pytest.mark.parametrize("is_gated", [False, True])
def test_products_with_offsets_of_groups_equal_the_reference_to_the_bit(
    isa_kernels, dtype, out_features, in_features, is_gated
):
    packed = pack_quantized(weight_with_offsets(2 * out_features, in_features), is_gated=is_gated)
    x = torch.randn(20, in_features).to(dtype)
    x[3], x[4, 0] = 0, torch.inf
    if is_gated:
        expected = reference.packed_gated_linear(x, packed, None, "silu")
        actual = isa_kernels.packed_gated_linear(x, packed, None, "silu")
        rtol = 1e-5 if dtype == torch.float32 else 0.008
        torch.testing.assert_close(actual, expected, atol=1e-6, rtol=rtol, equal_nan=True)
        return
    expected = reference.packed_linear(x, packed, None)
    for num_rows in NUMBERS_OF_ROWS:
        actual = isa_kernels.packed_linear(x[:num_rows], packed, None)
        torch.testing.assert_close(actual, expected[:num_rows], atol=0, rtol=0, equal_nan=True)


def test_the_largest_sums_with_offsets_do_not_overflow(isa_kernels, dtype):
    weight = weight_with_offsets(64, 10240)
    weight.q[:], weight.offsets.scale_q[:], weight.offsets.q[:] = -8, 255, -128
    packed = pack_quantized(weight)
    for value in (127.0, -127.0):
        x = torch.full((7, 10240), value).to(dtype)
        actual, expected = isa_kernels.packed_linear(x, packed, None), reference.packed_linear(x, packed, None)
        assert torch.equal(actual, expected)
        exact = (x.double() @ packed.rows(torch.arange(64)).double().T).to(dtype)
        torch.testing.assert_close(actual, exact, rtol=1e-5 if dtype == torch.float32 else 0.01, atol=0)


@pytest.mark.parametrize("out_features", [33, 960])
def test_a_row_has_the_same_bits_with_offsets_whoever_else_is_served(kernels, dtype, out_features):
    x, packed = torch.randn(110, 96).to(dtype), pack_quantized(weight_with_offsets(out_features, 96))
    together = kernels.packed_linear(x, packed, None)
    for num_rows in (1, 2, 5, 16):
        assert torch.equal(kernels.packed_linear(x[7 : 7 + num_rows], packed, None), together[7 : 7 + num_rows])


@pytest.mark.parametrize("num_rows", [1, 2, 7, 50])
def test_every_instruction_set_equals_the_reference(isa_kernels, dtype, format, num_rows):
    packed, x = packed_weight(95, 41, format=format), torch.randn(num_rows, 41).to(dtype)
    expected = reference.packed_linear(x, packed, None)
    if format.is_dynamic:
        assert torch.equal(isa_kernels.packed_linear(x, packed, None), expected)
    torch.testing.assert_close(isa_kernels.packed_linear(x, packed, None), expected, **TOLERANCES[dtype])


@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
def test_products_of_rows_as_they_are_equal_the_reference(every_isa, dtype, out_features, in_features):
    packed = packed_weight(out_features, in_features, format=WeightFormat.INT8)
    bias, x = torch.randn(out_features).to(dtype), torch.randn(20, in_features + 10).to(dtype)[:, 3 : 3 + in_features]
    for added in (None, bias):
        expected = reference.packed_linear(x, packed, added)
        for num_rows in NUMBERS_OF_ROWS:
            actual = every_isa.packed_linear(x[:num_rows], packed, added)
            torch.testing.assert_close(actual, expected[:num_rows], **TOLERANCES[dtype])


@pytest.mark.parametrize("in_features", [8, 40, 1000])
def test_rows_as_they_are_give_the_bits_that_the_integers_as_floats_give(every_isa, dtype, in_features):
    q = torch.randint(-127, 128, (70, in_features), dtype=torch.int8)
    quantized = QuantizedWeight(q, torch.ones(70), WeightFormat.INT8)
    for num_rows in NUMBERS_OF_ROWS:
        x = torch.randn(num_rows, in_features).to(dtype)
        expected = every_isa.packed_linear(x, pack(q.to(dtype)), None)
        assert torch.equal(every_isa.packed_linear(x, pack_quantized(quantized), None), expected), num_rows


@pytest.mark.parametrize("out_features", [1, 33, 960])
def test_a_row_has_the_same_bits_alone_in_a_batch_and_on_any_number_of_threads(kernels, dtype, format, out_features):
    x, packed = torch.randn(110, 96).to(dtype), packed_weight(out_features, 96, format=format)
    together = kernels.packed_linear(x, packed, None)
    for num_threads in (1, 3, 7):
        torch.set_num_threads(num_threads)
        assert torch.equal(kernels.packed_linear(x, packed, None), together)
    for row in range(0, 110, 13):
        assert torch.equal(kernels.packed_linear(x[row : row + 1], packed, None)[0], together[row])
        assert torch.equal(kernels.packed_linear(x[row : row + 3], packed, None), together[row : row + 3])


@pytest.mark.parametrize(("out_features", "in_features"), [(32, 2), (1, 8), (33, 16), (95, 41), (192, 576)])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_products_equal_the_reference(every_isa, dtype, format, out_features, in_features, activation):
    packed = packed_weight(2 * out_features, in_features, format=format, is_gated=True)
    bias = torch.randn(2 * out_features).to(dtype)
    if dtype == torch.float32:
        tolerances = {"atol": 1e-5, "rtol": 1e-5}
    else:  # sums of integers are exact, and a result may be rounded the other way
        tolerances = {"atol": 1e-6 if format.is_dynamic else 5e-3, "rtol": 0.008}
    for num_rows in (0, 1, 5, 13, 50):
        x = (torch.randn(num_rows, in_features) * in_features**-0.5).to(dtype)
        for added in (None, bias):
            expected = reference.packed_gated_linear(x, packed, added, activation)
            torch.testing.assert_close(
                every_isa.packed_gated_linear(x, packed, added, activation), expected, **tolerances
            )


@pytest.mark.parametrize("sizes", [[40], [0, 0], [0, 3, 0, 9, 0], [97, 0, 192, 1], [0, 1] * 6])
@pytest.mark.parametrize(("out_features", "in_features"), [(32, 2), (95, 41)])
def test_each_group_is_multiplied_by_its_own_weight(every_isa, dtype, format, sizes, out_features, in_features):
    packed = packed_weight(len(sizes), out_features, in_features, format=format)
    x, starts = torch.randn(sum(sizes), in_features).to(dtype), torch.tensor([0, *sizes]).cumsum(0)
    expected = reference.packed_grouped_gemm(x, packed, starts)
    actual = every_isa.packed_grouped_gemm(x, packed, starts)
    if format.is_dynamic:
        assert torch.equal(actual, expected)
    else:
        torch.testing.assert_close(actual, expected, **TOLERANCES[dtype])


@pytest.mark.parametrize("size", [1e-38, 1e-30, 1e-20, 1e20])
def test_sizes_of_numbers_do_not_matter(every_isa, dtype, dynamic, size):
    x, packed = torch.randn(13, 70).to(dtype), packed_weight(33, 70, format=dynamic)
    x[::2] *= size
    x[3] = 0
    actual = every_isa.packed_linear(x, packed, None)
    assert torch.equal(actual, reference.packed_linear(x, packed, None))
    assert not actual[3].any()
    assert actual.isfinite().all()


def test_zeros_in_rows_and_weights_give_zeros(kernels, dtype, format):
    x, weight = torch.randn(8, 40).to(dtype), torch.randn(33, 40)
    x[::2], weight[5] = 0, 0
    actual = kernels.packed_linear(x, pack_quantized(quantize(weight, format)), None)
    assert not actual[::2].any()
    assert not actual[:, 5].any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_spoils_no_other(every_isa, dtype, format, bad):
    x, packed = torch.randn(8, 40).to(dtype), packed_weight(33, 40, format=format)
    expected = every_isa.packed_linear(x, packed, None)
    x[1, 39], x[7, 0] = bad, bad
    actual = every_isa.packed_linear(x, packed, None)
    good = [0, 2, 3, 4, 5, 6]
    assert torch.equal(actual[good], expected[good])
    assert not actual[[1, 7]].isfinite().any()


def test_the_largest_sums_of_integers_do_not_overflow(every_isa, dtype, dynamic):
    limit = 127 if dynamic is WeightFormat.INT8_DYNAMIC else 7
    scales = torch.ones(64) if dynamic is WeightFormat.INT8_DYNAMIC else torch.ones(64, 320)
    q = torch.full((64, 10240), limit, dtype=torch.int8)
    q[1::2] = -limit
    packed = pack_quantized(QuantizedWeight(q, scales, dynamic))
    for value in (127.0, -127.0):
        x = torch.full((7, 10240), value).to(dtype)
        expected = (q[:, 0].float() * (value * 10240)).to(dtype).expand(7, -1)
        assert torch.equal(every_isa.packed_linear(x, packed, None), expected)
