import pytest
import torch

from rayinfer_kernels import reference
from rayinfer_kernels.gpu import activations

# The exponential may differ in its last digits, and rounding after it may go to the neighbour, once for each step.
TOLERANCES = {
    torch.float32: {"atol": 1e-5, "rtol": 1e-5},
    torch.bfloat16: {"atol": 1e-4, "rtol": 2.0**-7},
    torch.float16: {"atol": 2e-4, "rtol": 2.0**-9},
}
SHAPES = [(1, 2, 0), (3, 96, 4), (2, 2100, 0), (5, 64, 1)]


@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
@pytest.mark.parametrize(("num_rows", "width", "extra"), SHAPES)
@pytest.mark.parametrize("name", ["silu_and_mul", "gelu_tanh_and_mul", "gelu", "gelu_tanh"])
def test_rows_are_changed_as_the_reference_does_it(device, dtype, num_rows, width, extra, name):
    x = (torch.randn(num_rows, width + extra) * 4).to(dtype).to(device)[:, extra:]
    expected = getattr(reference, name)(x)
    torch.testing.assert_close(getattr(activations, name)(x), expected, **TOLERANCES[dtype])


def test_numbers_far_from_zero_stay_what_they_are_or_become_zero(device):
    x = torch.tensor([[-3e4, -100.0, 100.0, 3e4, 1.0, 1.0, 1.0, 1.0]], device=device)
    assert activations.silu_and_mul(x).tolist() == [[-0.0, pytest.approx(-100 * 3.8e-44, abs=1e-41), 100.0, 3e4]]
    assert activations.gelu_tanh_and_mul(x).tolist() == [[-0.0, -0.0, 100.0, 3e4]]
    assert activations.gelu(x)[0, :4].tolist() == [-0.0, -0.0, 100.0, 3e4]


def test_no_rows_and_odd_halves(device):
    assert activations.silu_and_mul(torch.empty(0, 8, device=device)).shape == (0, 4)
    with pytest.raises(ValueError, match="7 numbers"):
        activations.silu_and_mul(torch.ones(2, 7, device=device))
