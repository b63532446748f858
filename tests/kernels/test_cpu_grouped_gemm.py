import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rayinfer_kernels import ops, reference
from rayinfer_kernels.cpu.kernels import CpuKernels
from rayinfer_kernels.packed_weight import pack
from support.kernels.grouped_rows import GROUPS, products_one_by_one, starts_of

TOLERANCES = {torch.float32: {"atol": 1e-4, "rtol": 1e-5}, torch.bfloat16: {"atol": 0.02, "rtol": 0.01}}
SHAPES = [(32, 2), (64, 200), (1, 8), (33, 16), (95, 40), (130, 300)]


@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
@pytest.mark.parametrize("groups", GROUPS)
def test_each_group_is_multiplied_by_its_own_weight(kernels, dtype, groups, out_features, in_features):
    sizes = GROUPS[groups]
    x = torch.randn(sum(sizes), in_features + 10).to(dtype)[:, 3 : 3 + in_features]
    weight = torch.randn(len(sizes), out_features, in_features).to(dtype)
    expected = products_one_by_one(x, weight, sizes)
    starts, packed = starts_of(sizes), pack(weight.clone())
    for actual in (
        kernels.packed_grouped_gemm(x, packed, starts),
        kernels.packed_grouped_gemm(x, packed, starts.to(torch.int32)),
        reference.packed_grouped_gemm(x, packed, starts),
        ops.grouped_gemm(x, weight, starts),
    ):
        torch.testing.assert_close(actual, expected, **TOLERANCES[dtype])


@pytest.mark.parametrize(
    "groups", ["no rows", "no groups in use at the ends", "tiles and one more", "more than a task"]
)
def test_every_instruction_set_equals_the_reference(isa_kernels, dtype, groups):
    sizes = GROUPS[groups]
    for out_features, in_features in ((33, 16), (95, 41)):
        x = torch.randn(sum(sizes), in_features + 10).to(dtype)[:, 3 : 3 + in_features]
        weight = torch.randn(len(sizes), out_features, in_features).to(dtype)
        actual = isa_kernels.packed_grouped_gemm(x, pack(weight.clone()), starts_of(sizes))
        torch.testing.assert_close(actual, products_one_by_one(x, weight, sizes), **TOLERANCES[dtype])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=12), st.integers(1, 100), st.integers(1, 40))
def test_groups_of_any_sizes_and_shapes_are_multiplied_right(library, sizes, out_features, in_features):
    x, weight = torch.randn(sum(sizes), in_features), torch.randn(len(sizes), out_features, in_features)
    expected = products_one_by_one(x, weight, sizes)
    kernels = CpuKernels(library.handle, torch.float32)
    actual = kernels.packed_grouped_gemm(x, pack(weight), starts_of(sizes))
    torch.testing.assert_close(actual, expected, **TOLERANCES[torch.float32])


@pytest.mark.parametrize("out_features", [1, 33, 576])
def test_a_row_has_the_same_bits_in_any_group_alone_and_on_any_number_of_threads(kernels, dtype, out_features):
    sizes = [0, 29, 100, 1, 7]
    x, packed = torch.randn(sum(sizes), 576).to(dtype), pack(torch.randn(5, out_features, 576).to(dtype))
    together = kernels.packed_grouped_gemm(x, packed, starts_of(sizes))
    for num_threads in (1, 3, 7):
        torch.set_num_threads(num_threads)
        assert torch.equal(kernels.packed_grouped_gemm(x, packed, starts_of(sizes)), together)
    for group, row in ((1, 0), (1, 28), (2, 29), (2, 127), (3, 129), (4, 133)):
        alone = [int(each == group) for each in range(5)]
        assert torch.equal(kernels.packed_grouped_gemm(x[row : row + 1], packed, starts_of(alone))[0], together[row])
        single = kernels.packed_linear(x[row : row + 1], packed.layer(group), None)
        assert torch.equal(single[0], together[row])


def test_weights_of_groups_are_packed_in_their_own_memory(dtype):
    weight = torch.randn(5, 64, 48).to(dtype)
    packed = pack(weight.clone())
    for group in range(5):
        assert torch.equal(packed.layer(group).rows(torch.arange(64)), weight[group])
    assert pack(weight).panels.data_ptr() == weight.data_ptr()


def test_a_row_that_is_not_a_number_spoils_no_other(kernels, dtype):
    x, packed = torch.randn(20, 64).to(dtype), pack(torch.randn(3, 40, 64).to(dtype))
    starts = starts_of([9, 0, 11])
    clean = kernels.packed_grouped_gemm(x, packed, starts)
    x[4] = float("nan")
    spoilt = kernels.packed_grouped_gemm(x, packed, starts)
    assert spoilt[4].isnan().all()
    assert torch.equal(spoilt[:4], clean[:4])
    assert torch.equal(spoilt[5:], clean[5:])


@pytest.mark.parametrize("width", [1, 16, 37, 576])
@pytest.mark.parametrize(("num_tokens", "num_choices"), [(0, 2), (1, 1), (1, 8), (7, 2), (300, 3)])
def test_chosen_rows_are_summed_with_their_weights(isa_kernels, dtype, num_tokens, num_choices, width):
    rows = torch.randn(50, width).to(dtype)
    indices, weights = torch.randint(50, (num_tokens, num_choices)), torch.rand(num_tokens, num_choices)
    expected = torch.einsum("tc,tcw->tw", weights.double(), rows[indices].double()).to(dtype)
    for implementation in (isa_kernels, reference):
        actual = implementation.moe_combine(rows, indices, weights)
        torch.testing.assert_close(actual, expected, **TOLERANCES[dtype])


@pytest.mark.parametrize("width", [37, 576])
def test_sums_have_the_same_bits_alone_in_a_batch_and_on_any_number_of_threads(kernels, dtype, width):
    rows, indices, weights = torch.randn(80, width).to(dtype), torch.randint(80, (60, 6)), torch.rand(60, 6)
    together = kernels.moe_combine(rows, indices, weights)
    for num_threads in (1, 3, 7):
        torch.set_num_threads(num_threads)
        assert torch.equal(kernels.moe_combine(rows, indices, weights), together)
    for token in range(0, 60, 7):
        alone = kernels.moe_combine(rows, indices[token : token + 1], weights[token : token + 1])
        assert torch.equal(alone[0], together[token])
