"""Products of weights in groups beside plain weights of the numbers that they stand for."""

import pytest
import torch

from rayinfer_kernels import reference
from rayinfer_kernels.group_blocks import GroupedWeight, pack_groups
from rayinfer_kernels.packed_weight import WeightFormat, pack

KINDS = ["int4", "int4 with offsets", "int8", "int8 with offsets", "float8", "table"]
# Groups, inputs and outputs: one panel and several, and inputs that are multiplied in blocks.
SHAPES = [(1, 8, 8), (33, 96, 16), (95, 1664, 128), (7, 10, 10)]
NUMBERS_OF_ROWS = [0, 1, 2, 7, 40, 100]
TABLE = torch.linspace(-1, 1, 16).square() * torch.linspace(-1, 1, 16).sign()


@pytest.fixture(autouse=True)
def one_thread(two_threads):
    torch.set_num_threads(1)  # sharing such small products takes longer than computing them


def grouped_weight(kind: str, num_outputs: int, num_inputs: int, group_size: int) -> GroupedWeight:
    """Make a random weight; scales have the digits of float16, so that products with codes are exact."""
    shape, groups = (num_outputs, num_inputs), (num_outputs, num_inputs // group_size)
    offsets = torch.randn(groups).half().float() if kind.endswith("offsets") else None
    common = {"scales": (torch.rand(groups) / 8).half().float(), "group_size": group_size, "offsets": offsets}
    if kind == "float8":
        codes = torch.randint(256, shape, dtype=torch.uint8)
        codes[codes & 0x7F == 0x7F] = 3  # no NaN
        return GroupedWeight(codes=codes.view(torch.float8_e4m3fn), format=WeightFormat.FLOAT8_GROUPS, **common)
    if kind == "table":
        codes = torch.randint(16, shape, dtype=torch.uint8)
        return GroupedWeight(codes=codes, format=WeightFormat.TABLE4_GROUPS, table=TABLE, **common)
    if kind.startswith("int8"):
        codes = torch.randint(-128, 128, shape, dtype=torch.int8)
        return GroupedWeight(codes=codes, format=WeightFormat.INT8_GROUPS, **common)
    codes = torch.randint(16, shape, dtype=torch.int8) - (8 if offsets is None else 0)
    return GroupedWeight(codes=codes.to(torch.int8), format=WeightFormat.INT4_GROUPS, **common)


def numbers_of(weight: GroupedWeight) -> torch.Tensor:
    """Compute what it stands for, number by number."""
    codes = TABLE[weight.codes.long()] if weight.table is not None else weight.codes.float()
    values = codes * weight.scales.repeat_interleave(weight.group_size, 1)
    return values if weight.offsets is None else values + weight.offsets.repeat_interleave(weight.group_size, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_gated", [False, True])
def test_packing_loses_nothing(kind, is_gated):
    weight = grouped_weight(kind, 70, 96, 16)
    packed = pack_groups(weight, is_gated=is_gated)
    assert torch.equal(packed.rows(torch.arange(70)), numbers_of(weight))
    assert torch.equal(packed.rows(torch.tensor([69, 0, 40])), numbers_of(weight)[[69, 0, 40]])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("num_outputs", "num_inputs", "group_size"), SHAPES)
def test_products_have_the_bits_of_the_dequantized_weight(
    isa_kernels, dtype, kind, num_outputs, num_inputs, group_size
):
    weight = grouped_weight(kind, num_outputs, num_inputs, group_size)
    packed, plain = pack_groups(weight), pack(numbers_of(weight).to(dtype))
    bias = torch.randn(num_outputs).to(dtype)
    for num_rows in NUMBERS_OF_ROWS:
        x = torch.randn(num_rows, num_inputs + 10).to(dtype)[:, 3 : 3 + num_inputs]
        for added in (None, bias):
            wanted = isa_kernels.packed_linear(x, plain, added)
            assert torch.equal(isa_kernels.packed_linear(x, packed, added), wanted), num_rows
            close = {"atol": 0.05, "rtol": 0.01} if dtype == torch.bfloat16 else {"atol": 2e-3, "rtol": 1e-4}
            torch.testing.assert_close(reference.packed_linear(x, packed, added), wanted, **close)


def test_inputs_of_several_blocks_have_the_bits_of_the_dequantized_weight(isa_kernels, dtype):
    weight = grouped_weight("int4 with offsets", 33, 320, 64)
    packed, plain = pack_groups(weight), pack(numbers_of(weight).to(dtype))
    for num_rows in (1, 7, 40):
        x = torch.randn(num_rows, 320).to(dtype)
        assert torch.equal(isa_kernels.packed_linear(x, packed, None), isa_kernels.packed_linear(x, plain, None))


@pytest.mark.parametrize("kind", KINDS)
def test_gated_products_have_the_bits_of_the_dequantized_weight(isa_kernels, dtype, kind):
    weight = grouped_weight(kind, 90, 64, 32)
    packed, plain = pack_groups(weight, is_gated=True), pack(numbers_of(weight).to(dtype), is_gated=True)
    x = torch.randn(3, 64).to(dtype)
    assert torch.equal(
        isa_kernels.packed_gated_linear(x, packed, None, "silu"),
        isa_kernels.packed_gated_linear(x, plain, None, "silu"),
    )
    actual = reference.packed_gated_linear(x, packed, None, "silu")
    close = {"atol": 0.05, "rtol": 0.02} if dtype == torch.bfloat16 else {"atol": 1e-3, "rtol": 1e-4}
    torch.testing.assert_close(actual, isa_kernels.packed_gated_linear(x, plain, None, "silu"), **close)


def test_rows_of_an_embedding_are_dequantized(kernels, dtype):
    weight = grouped_weight("int4 with offsets", 70, 64, 32)
    indices = torch.tensor([3, 69, 3])
    taken = kernels.packed_embedding(pack_groups(weight), indices, dtype)
    assert torch.equal(taken, numbers_of(weight)[indices].to(dtype))


def test_groups_that_do_not_fill_the_inputs_are_refused():
    for num_inputs, group_size in ((40, 32), (9, 3)):
        with pytest.raises(ValueError, match="not whole groups"):
            grouped_weight("int4", 4, num_inputs, group_size)
    with pytest.raises(ValueError, match="one per group"):
        GroupedWeight(
            codes=torch.zeros(4, 64, dtype=torch.int8), scales=torch.ones(4, 1), group_size=32,
            format=WeightFormat.INT8_GROUPS,
        )  # fmt: skip
