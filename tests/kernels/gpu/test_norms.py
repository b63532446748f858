import pytest
import torch

from rayinfer_kernels import reference
from rayinfer_kernels.gpu import norms

# float32 sums in another order; others are rounded twice from sums that differ in that way, each time to a neighbour.
TOLERANCES = {
    torch.float32: {"atol": 2e-6, "rtol": 2e-6},
    torch.bfloat16: {"atol": 2e-6, "rtol": 2.0**-6},
    torch.float16: {"atol": 2e-6, "rtol": 2.0**-9},
}
DTYPES = list(TOLERANCES)


def rows_of(num_rows, width, dtype, device, *, extra=0):
    """Random rows, with `extra` columns of something else beside them."""
    wide = torch.randn(num_rows, width + 2 * extra) * 3
    return wide.to(dtype).to(device)[:, extra : extra + width]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("num_rows", "width", "extra"), [(1, 1, 0), (3, 80, 5), (2, 576, 0), (5, 1000, 3), (1, 5000, 1)]
)
@pytest.mark.parametrize("unit_offset", [False, True])
def test_rows_are_normed_as_the_reference_does_it(device, dtype, num_rows, width, extra, unit_offset):
    x, weight = rows_of(num_rows, width, dtype, device, extra=extra), torch.randn(width).to(dtype).to(device)
    expected = reference.rms_norm(x, weight, 1e-5, unit_offset)
    torch.testing.assert_close(norms.rms_norm(x, weight, 1e-5, unit_offset), expected, **TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_head_of_a_slice_is_normed(device, dtype):
    x, weight = torch.randn(4, 6, 48).to(dtype).to(device)[:, 2:5], torch.randn(48).to(dtype).to(device)
    expected = reference.rms_norm(x, weight, 1e-6)
    torch.testing.assert_close(norms.rms_norm(x, weight, 1e-6), expected, **TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("num_rows", "width", "extra"), [(1, 16, 0), (3, 96, 4), (2, 1030, 1)])
@pytest.mark.parametrize("unit_offset", [False, True])
def test_the_sum_is_kept_and_its_norm_returned(device, dtype, num_rows, width, extra, unit_offset):
    x, weight = rows_of(num_rows, width, dtype, device, extra=extra), torch.randn(width).to(dtype).to(device)
    residual = rows_of(num_rows, width, dtype, device)
    sums = residual + x
    expected = reference.rms_norm(sums, weight, 1e-5, unit_offset)
    normed = norms.add_rms_norm(x, residual, weight, 1e-5, unit_offset)
    assert torch.equal(residual, sums)
    torch.testing.assert_close(normed, expected, **TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("num_rows", "width", "extra"), [(2, 16, 0), (3, 300, 2)])
def test_rows_are_normed_around_their_mean(device, dtype, num_rows, width, extra):
    x = rows_of(num_rows, width, dtype, device, extra=extra) + 2
    weight, bias = (torch.randn(width).to(dtype).to(device) for _ in range(2))
    expected = reference.layer_norm(x.float(), weight.float(), bias.float(), 1e-5)
    torch.testing.assert_close(
        norms.layer_norm(x, weight, bias, 1e-5).float(), expected, atol=1e-5, rtol=TOLERANCES[dtype]["rtol"]
    )


def test_what_is_added_to_the_mean_square_counts_for_small_numbers(device):
    x, weight = torch.randn(2, 64, device=device) * 1e-3, torch.ones(64, device=device)
    for eps in (1e-6, 1e-5):
        expected = reference.rms_norm(x, weight, eps)
        torch.testing.assert_close(norms.rms_norm(x, weight, eps), expected)
        torch.testing.assert_close(norms.add_rms_norm(x, torch.zeros_like(x), weight, eps), expected)
        expected = reference.layer_norm(x, weight, weight, eps)
        torch.testing.assert_close(norms.layer_norm(x, weight, weight, eps), expected)


def test_no_rows_are_no_launch(device):
    empty, weight = torch.empty(0, 8, device=device), torch.ones(8, device=device)
    assert norms.rms_norm(empty, weight, 1e-5).shape == (0, 8)
    assert norms.add_rms_norm(empty, empty.clone(), weight, 1e-5).shape == (0, 8)
    assert norms.layer_norm(empty, weight, weight, 1e-5).shape == (0, 8)


def test_a_residual_of_another_shape_or_type_is_refused(device):
    x, weight = torch.ones(2, 8, device=device), torch.ones(8, device=device)
    for residual in (torch.ones(3, 8, device=device), torch.ones(2, 8, dtype=torch.bfloat16, device=device)):
        with pytest.raises(ValueError, match="the residual is changed in place"):
            norms.add_rms_norm(x, residual, weight, 1e-5)
