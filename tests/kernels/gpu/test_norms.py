import pytest
import torch

from rayinfer_kernels import reference
from rayinfer_kernels.gpu import norms
from support.kernels.pairwise import Void
from support.kernels.row_layouts import LAYOUTS, laid_out

# float32 sums in another order; others are rounded twice from sums that differ in that way, each time to a neighbor.
TOLERANCES = {
    torch.float32: {"atol": 2e-6, "rtol": 2e-6},
    torch.bfloat16: {"atol": 2e-6, "rtol": 2.0**-6},
    torch.float16: {"atol": 2e-6, "rtol": 2.0**-9},
}
SIZES = {"dtype": list(TOLERANCES), "num_rows": [3, Void(0), 1], "width": [80, 1, 576, 5000]}


def random_rows(dtype, num_rows, width):
    return (torch.randn(num_rows, width) * 3).to(dtype)


def random_weight(case, device):
    return torch.randn(case["width"]).to(device, case["dtype"])


def as_heads(rows, device):
    """Three heads of each row, out of six."""
    return rows[:, None].repeat(1, 6, 1).to(device)[:, 2:5]


@pytest.mark.axes(**SIZES, layout=[*LAYOUTS, "heads"], unit_offset=[False, True])
def test_rows_are_normed_as_the_reference_does_it(case, device):
    rows, weight = random_rows(*(case[name] for name in SIZES)), random_weight(case, device)
    x = as_heads(rows, device) if case["layout"] == "heads" else laid_out(rows, case["layout"], device)
    expected = reference.rms_norm(x, weight, 1e-5, case["unit_offset"])
    got = norms.rms_norm(x, weight, 1e-5, case["unit_offset"])
    torch.testing.assert_close(got, expected, **TOLERANCES[case["dtype"]])


@pytest.mark.axes(**SIZES, layout=LAYOUTS, residual_layout=LAYOUTS[:2], unit_offset=[False, True])
def test_the_sum_is_kept_and_its_norm_returned(case, device):
    x, residual = (
        laid_out(random_rows(*(case[name] for name in SIZES)), case[layout], device)
        for layout in ("layout", "residual_layout")
    )
    weight, sums = random_weight(case, device), residual + x
    expected = reference.rms_norm(sums, weight, 1e-5, case["unit_offset"])
    normed = norms.add_rms_norm(x, residual, weight, 1e-5, case["unit_offset"])
    assert torch.equal(residual, sums)
    torch.testing.assert_close(normed, expected, **TOLERANCES[case["dtype"]])


@pytest.mark.axes(**SIZES, layout=LAYOUTS)
def test_rows_are_normed_around_their_mean(case, device):
    x = laid_out(random_rows(*(case[name] for name in SIZES)) + 2, case["layout"], device)
    weight, bias = random_weight(case, device), random_weight(case, device)
    expected = reference.layer_norm(x.float(), weight.float(), bias.float(), 1e-5)
    normed = norms.layer_norm(x, weight, bias, 1e-5)
    torch.testing.assert_close(normed.float(), expected, atol=1e-5, rtol=TOLERANCES[case["dtype"]]["rtol"])


def test_what_is_added_to_the_mean_square_counts_for_small_numbers(device):
    x, weight = torch.randn(2, 64, device=device) * 1e-3, torch.ones(64, device=device)
    for eps in (1e-6, 1e-5):
        expected = reference.rms_norm(x, weight, eps)
        torch.testing.assert_close(norms.rms_norm(x, weight, eps), expected)
        torch.testing.assert_close(norms.add_rms_norm(x, torch.zeros_like(x), weight, eps), expected)
        expected = reference.layer_norm(x, weight, weight, eps)
        torch.testing.assert_close(norms.layer_norm(x, weight, weight, eps), expected)


@pytest.mark.parametrize("wrong", [torch.ones(3, 8), torch.ones(2, 8, dtype=torch.bfloat16), torch.ones(8, 2).T])
def test_a_residual_that_cannot_be_changed_in_place_is_refused(device, wrong):
    x, weight = torch.ones(2, 8, device=device), torch.ones(8, device=device)
    with pytest.raises(ValueError, match="the residual is changed in place"):
        norms.add_rms_norm(x, wrong.to(device), weight, 1e-5)
