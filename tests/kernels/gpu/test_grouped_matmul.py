import pytest
import torch

from rayinfer_kernels import reference
from rayinfer_kernels.gpu import grouped_matmul

TOLERANCES = {
    torch.float32: {"atol": 5e-6, "rtol": 1e-5},
    torch.bfloat16: {"atol": 1e-4, "rtol": 2.0**-7},
    torch.float16: {"atol": 1e-4, "rtol": 2.0**-10},
}
# Rows of each group, inputs, outputs.
CASES = [
    ([1], 16, 16),
    ([0, 1, 0], 40, 70),
    ([3, 0, 0, 17, 1], 72, 33),
    ([0, 0, 5, 0], 130, 64),
    ([40, 30], 64, 20),
    ([120, 1, 0], 48, 130),
    ([2] * 20, 24, 16),
    ([0, 0, 0, 260], 32, 40),
]


@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
@pytest.mark.parametrize(("counts", "num_inputs", "num_outputs"), CASES, ids=str)
def test_every_group_is_multiplied_by_its_own_matrix(device, dtype, counts, num_inputs, num_outputs):
    starts = torch.tensor([0, *counts]).cumsum(0).to(device)
    x = torch.randn(sum(counts), num_inputs + 8).to(dtype).to(device)[:, 8:]
    weight = (torch.randn(len(counts), num_outputs, num_inputs) * num_inputs**-0.5).to(dtype).to(device)
    expected = torch.cat([rows.float() @ each.float().T for rows, each in zip(x.split(counts), weight, strict=True)])
    got = grouped_matmul.grouped_linear(x, weight, starts)
    torch.testing.assert_close(got, expected.to(dtype), **TOLERANCES[dtype])


def test_no_rows_are_no_launch(device):
    starts, weight = torch.zeros(4, dtype=torch.int64, device=device), torch.ones(3, 5, 8, device=device)
    assert grouped_matmul.grouped_linear(torch.empty(0, 8, device=device), weight, starts).shape == (0, 5)


@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
@pytest.mark.parametrize(("num_tokens", "num_choices", "width"), [(1, 1, 7), (11, 4, 130), (3, 8, 1100)])
def test_weighted_rows_are_summed_in_the_order_of_the_choice(device, dtype, num_tokens, num_choices, width):
    rows = torch.randn(30, width + 5).to(dtype).to(device)[:, 5:]
    indices = torch.randint(0, 30, (num_tokens, num_choices), device=device)
    weights = torch.rand(num_tokens, num_choices, device=device)
    expected = reference.combine_rows(rows, indices, weights)
    torch.testing.assert_close(grouped_matmul.combine_rows(rows, indices, weights), expected, **TOLERANCES[dtype])
