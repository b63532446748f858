import pytest
import torch

from rayinfer_kernels import reference
from rayinfer_kernels.gpu import activations
from support.kernels.pairwise import Void
from support.kernels.row_layouts import LAYOUTS, laid_out

# The exponential may differ in its last digits, and rounding after it may go to the neighbor, once for each step.
TOLERANCES = {
    torch.float32: {"atol": 1e-5, "rtol": 1e-5},
    torch.bfloat16: {"atol": 1e-4, "rtol": 2.0**-7},
    torch.float16: {"atol": 2e-4, "rtol": 2.0**-9},
}


@pytest.mark.axes(
    name=["silu_and_mul", "gelu_tanh_and_mul", "gelu", "gelu_tanh"],
    dtype=list(TOLERANCES),
    num_rows=[3, Void(0), 1],
    width=[96, 2, 64, 2100],
    layout=LAYOUTS,
)
def test_rows_are_changed_as_the_reference_does_it(case, device):
    x = laid_out((torch.randn(case["num_rows"], case["width"]) * 4).to(case["dtype"]), case["layout"], device)
    expected = getattr(reference, case["name"])(x)
    torch.testing.assert_close(getattr(activations, case["name"])(x), expected, **TOLERANCES[case["dtype"]])


def test_numbers_far_from_zero_stay_what_they_are_or_become_zero(device):
    x = torch.tensor([[-3e4, -100.0, 100.0, 3e4, 1.0, 1.0, 1.0, 1.0]], device=device)
    assert activations.silu_and_mul(x).tolist() == [[-0.0, pytest.approx(-100 * 3.8e-44, abs=1e-41), 100.0, 3e4]]
    assert activations.gelu_tanh_and_mul(x).tolist() == [[-0.0, -0.0, 100.0, 3e4]]
    assert activations.gelu(x)[0, :4].tolist() == [-0.0, -0.0, 100.0, 3e4]


def test_a_row_without_two_equal_halves_is_refused(device):
    with pytest.raises(ValueError, match="7 numbers"):
        activations.silu_and_mul(torch.ones(2, 7, device=device))
