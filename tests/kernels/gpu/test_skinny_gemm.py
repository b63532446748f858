"""Products of few rows, and what is part of them, against the reference in float32."""

import pytest
import torch

from rayinfer_kernels import reference
from rayinfer_kernels.gpu import skinny_gemm as gpu
from rayinfer_kernels.gpu.skinny_gemm import Norm, is_skinny
from rayinfer_kernels.layer_stack import PackedLinear
from rayinfer_kernels.packed_weight import PackedWeight
from rayinfer_kernels.quantized_weight import quantize_float8
from support.kernels.pairwise import Void

EPS = 0.5  # so that it counts
GATES = {"silu": reference.silu_and_mul, "gelu_tanh": reference.gelu_tanh_and_mul}


def random(*shape, dtype, device):
    return torch.randn(shape).to(dtype).to(device)


def skinny_gemm(*operands, **options):
    """Multiply as if the GPU had two multiprocessors: programs take more of a small matrix, and fewer have to run."""
    return gpu.skinny_gemm(*operands, **options, num_multiprocessors=2)


def expected(x, linear, norm=None, gate=None, residual=None):
    weight = linear.weight
    if isinstance(weight, PackedWeight):
        weight = weight.rows(torch.arange(weight.num_rows, device=x.device))
    rows = x.float() if norm is None else reference.rms_norm(x.float(), norm.weight.float(), norm.eps)
    results = reference.linear(rows, weight.float(), None if linear.bias is None else linear.bias.float())
    results = results if gate is None else GATES[gate](results)
    return results if residual is None else results + residual.float()


@pytest.mark.axes(
    dtype=[torch.bfloat16, torch.float16, torch.float32],
    num_rows=[1, 2, 3, 4, Void(0)],
    sizes=[(16, 16), (300, 70), (1100, 34), (40, 280)],
    has_eight_bits=[False, True],
    has_norm=[False, True],
    gate=[None, *GATES],
    has_bias=[False, True],
    residual=[None, "in one piece", "strided"],
    strided=[False, True],
)
def test_it_equals_the_reference(case, device):
    dtype, num_rows, (num_inputs, num_outputs) = case["dtype"], case["num_rows"], case["sizes"]
    kind = {"dtype": dtype, "device": device}
    x = random(num_rows, num_inputs + 8, **kind)
    x = x[:, 8:] if case["strided"] else x[:, 8:].contiguous()
    weight = random(num_outputs, num_inputs, **kind) * num_inputs**-0.5
    weight = quantize_float8(weight, is_gated=case["gate"] is not None) if case["has_eight_bits"] else weight
    linear = PackedLinear(weight, random(num_outputs, **kind) if case["has_bias"] else None)
    norm = Norm(random(num_inputs, **kind), EPS) if case["has_norm"] else None
    num_results = num_outputs // 2 if case["gate"] else num_outputs
    residual = None
    if case["residual"]:
        residual = random(num_rows, num_results + 3, **kind)[:, :num_results]
        residual = residual.contiguous() if case["residual"] == "in one piece" else residual
    wanted = expected(x, linear, norm, case["gate"], residual)
    got = skinny_gemm(x, linear, norm=norm, gate=case["gate"], residual=residual)
    assert got.dtype is dtype
    assert residual is None or got is residual
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(got.float(), wanted, atol=2e-5, rtol=max(unit, 2e-5))


def test_what_stands_beside_the_results_stays(device):
    around = torch.full((3, 20), 7.0, device=device)
    x, weight = torch.ones(2, 16, device=device), torch.ones(10, 16, device=device)
    skinny_gemm(x, PackedLinear(weight, None), residual=around[:2, 5:15])
    wanted = torch.full((3, 20), 7.0)
    wanted[:2, 5:15] = 23.0
    assert torch.equal(around.cpu(), wanted)


def test_a_row_that_is_no_number_spoils_no_other(device):
    x, weight = random(3, 40, dtype=torch.bfloat16, device=device), random(24, 40, dtype=torch.bfloat16, device=device)
    norm = Norm(torch.ones(40, dtype=torch.bfloat16, device=device), EPS)
    clean = skinny_gemm(x, PackedLinear(weight, None), norm=norm)
    x[1, 7] = float("nan")
    spoilt = skinny_gemm(x, PackedLinear(weight, None), norm=norm)
    assert spoilt[1].isnan().all()
    assert torch.equal(spoilt[[0, 2]], clean[[0, 2]])


def test_a_row_gets_the_same_bits_beside_any_others(device):
    """As long as they are so few: more are torch's, whose sums have another order."""
    x, weight = random(4, 300, dtype=torch.bfloat16, device=device), random(9, 300, dtype=torch.bfloat16, device=device)
    together = skinny_gemm(x, PackedLinear(weight, None))
    for row in range(4):
        assert torch.equal(skinny_gemm(x[row : row + 1], PackedLinear(weight, None)), together[row : row + 1])


@pytest.mark.parametrize(
    ("x", "residual"),
    [
        (torch.zeros(5, 16), None),
        (torch.zeros(2, 15), None),
        (torch.zeros(2, 16), torch.zeros(2, 7)),
        (torch.zeros(2, 16), torch.zeros(2, 8).half()),
        (torch.zeros(2, 16), torch.zeros(8, 2).T),
    ],
)
def test_what_does_not_fit_together_is_refused(device, x, residual):
    residual = None if residual is None else residual.to(device)
    with pytest.raises(ValueError, match=r"rows of 16,|cannot be added"):
        skinny_gemm(x.to(device), PackedLinear(torch.zeros(8, 16, device=device), None), residual=residual)


def test_only_few_rows_of_sixteen_bits_are_skinny():
    assert is_skinny(torch.zeros(4, 8).bfloat16())
    assert not is_skinny(torch.zeros(5, 8).bfloat16())
    assert not is_skinny(torch.zeros(1, 8))
