import pytest
import torch

from rayinfer_kernels import reference
from rayinfer_kernels.gpu import grouped_gemm
from support.kernels.pairwise import Void
from support.kernels.row_layouts import LAYOUTS, laid_out

TOLERANCES = {
    torch.float32: {"atol": 5e-6, "rtol": 1e-5},
    torch.bfloat16: {"atol": 1e-4, "rtol": 2.0**-7},
    torch.float16: {"atol": 1e-4, "rtol": 2.0**-10},
}
# Rows of each group: tiles have 16, 32, 64 or 128 of them, depending on how many there are on average.
COUNTS = [(3, 0, 0, 17, 1), Void((0, 0)), (1,), (0, 1, 0), (2,) * 9, (25, 20), (0, 130), (100, 101)]


@pytest.mark.axes(
    dtype=list(TOLERANCES),
    counts=COUNTS,
    num_inputs=[72, 16, 40, 130],
    num_outputs=[33, 16, 64, 130],
    layout=LAYOUTS,
)
def test_every_group_is_multiplied_by_its_own_matrix(case, device):
    counts, dtype, num_inputs = case["counts"], case["dtype"], case["num_inputs"]
    starts = torch.tensor([0, *counts]).cumsum(0).to(device)
    x = laid_out(torch.randn(sum(counts), num_inputs).to(dtype), case["layout"], device)
    weight = (torch.randn(len(counts), case["num_outputs"], num_inputs) * num_inputs**-0.5).to(device, dtype)
    expected = torch.cat([rows.float() @ each.float().T for rows, each in zip(x.split(counts), weight, strict=True)])
    got = grouped_gemm.grouped_gemm(x, weight, starts)
    torch.testing.assert_close(got, expected.to(dtype), **TOLERANCES[dtype])


@pytest.mark.axes(
    dtype=list(TOLERANCES),
    num_tokens=[3, Void(0), 1, 11],
    num_choices=[4, 1, 8],
    width=[130, 7, 64, 1100],
    layout=LAYOUTS,
)
def test_weighted_rows_are_summed_in_the_order_of_the_choice(case, device):
    rows = laid_out(torch.randn(30, case["width"]).to(case["dtype"]), case["layout"], device)
    chosen = (case["num_tokens"], case["num_choices"])
    indices, weights = torch.randint(0, 30, chosen, device=device), torch.rand(chosen, device=device)
    expected = reference.moe_combine(rows, indices, weights)
    got = grouped_gemm.moe_combine(rows, indices, weights)
    torch.testing.assert_close(got, expected, **TOLERANCES[case["dtype"]])
