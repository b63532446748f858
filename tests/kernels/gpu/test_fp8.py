import pytest
import torch

from rayinfer_kernels import reference
from rayinfer_kernels.gpu import fp8
from rayinfer_kernels.quantized_weight import quantize_float8
from rayinfer_kernels.reference import float8
from support.kernels.pairwise import Void
from support.kernels.row_layouts import LAYOUTS, laid_out

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def as_bits(numbers):
    return numbers.view(torch.uint8)


@pytest.mark.axes(
    dtype=DTYPES,
    num_rows=[7, Void(0), 1],
    width=[73, 1, 16, 1030],
    layout=LAYOUTS,
    kind=["of every size", "with zeros", "with NaN", "with infinities"],
)
def test_rows_are_rounded_to_the_bit_as_the_reference_does_it(case, device):
    x = (torch.randn(case["num_rows"], case["width"]) * torch.logspace(-6, 3, case["width"])).to(case["dtype"])
    x[:1, -1] = {"with NaN": float("nan"), "with infinities": float("-inf")}.get(case["kind"], 1.0)
    x[:2] *= case["kind"] != "with zeros"
    got, expected = fp8.quantize_rows(laid_out(x, case["layout"], device)), float8.quantize_rows(x)
    assert torch.equal(as_bits(got.numbers.cpu()), as_bits(expected.numbers))
    torch.testing.assert_close(got.scales.cpu(), expected.scales, atol=0, rtol=0, equal_nan=True)
    assert got.numbers.shape[1] % 16 == 0


def test_a_row_is_scaled_to_the_largest_number_and_one_that_is_no_number_stays_none(device):
    x = torch.tensor([[2.0, -4.0], [0.0, 0.0], [1.0, float("nan")]], device=device)
    rows = fp8.quantize_rows(x)
    restored = rows.numbers.float()[:, :2] * rows.scales[:, None]
    assert restored[:2].tolist() == [[2.0, -4.0], [0.0, 0.0]]
    assert restored[2].isnan().all()


def test_ties_go_to_the_even_neighbor_and_small_numbers_keep_steps_of_2_to_the_minus_9(device):
    # The largest makes the scale 1: 17 and 19 lie between 16, 18 and 20, and 1.5 and 2.5 steps between whole ones.
    x = torch.tensor([[448.0, 17.0, 19.0, -17.0, 1.5 / 512, 2.5 / 512, 0.4 / 512]], device=device)
    expected = [448.0, 16.0, 20.0, -16.0, 2 / 512, 2 / 512, 0.0]
    assert fp8.quantize_rows(x).numbers.float()[0, :7].tolist() == expected


@pytest.mark.axes(
    dtype=DTYPES,
    num_rows=[5, Void(0), 1, 40],
    num_inputs=[72, 16, 128],
    num_outputs=[41, 16, 200],
    has_bias=[False, True],
    layout=LAYOUTS,
)
def test_products_equal_the_reference(case, device):
    dtype, num_inputs, num_outputs = case["dtype"], case["num_inputs"], case["num_outputs"]
    x = torch.randn(case["num_rows"], num_inputs).to(dtype)
    weight = quantize_float8((torch.randn(num_outputs, num_inputs) * num_inputs**-0.5).to(dtype).to(device))
    on_cpu = quantize_float8((weight.rows(torch.arange(num_outputs, device=device))).cpu())
    bias = torch.randn(num_outputs).to(dtype) if case["has_bias"] else None
    got = fp8.linear(laid_out(x, case["layout"], device), weight, None if bias is None else bias.to(device)).cpu()
    expected = reference.packed_linear(x, on_cpu, bias)
    torch.testing.assert_close(got.float(), expected.float(), atol=0.02, rtol=2.0**-7)


def test_eight_bits_lose_little(device):
    x, weight = torch.randn(64, 256, device=device), torch.randn(96, 256, device=device) / 16
    exact = x @ weight.T
    error = fp8.linear(x, quantize_float8(weight), None) - exact
    assert 0.01 < (error.norm() / exact.norm()).item() < 0.06


def test_a_float8_weight_has_a_row_per_output(device):
    weight = torch.randn(20, 40, device=device)
    packed = quantize_float8(weight, is_gated=True)
    assert (packed.out_features, packed.num_rows, packed.in_features) == (10, 20, 40)
    rows = packed.rows(torch.tensor([3, 19], device=device))
    torch.testing.assert_close(rows, weight[[3, 19]], atol=0.1, rtol=2.0**-4)
