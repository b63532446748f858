import pytest
import torch

from rayinfer_kernels import ops
from support.kernels.grouped_rows import GROUPS, products_one_by_one, starts_of

TOLERANCE = {"atol": 0.02, "rtol": 0.01}


@pytest.mark.gpu
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("in_features", [64, 30])
def test_a_gpu_multiplies_each_group_by_its_own_weight(groups, in_features):
    sizes = GROUPS[groups]
    x, weight = torch.randn(sum(sizes), in_features), torch.randn(len(sizes), 48, in_features)
    for kind in (torch.float32, torch.bfloat16):
        expected = products_one_by_one(x.to(kind), weight.to(kind), sizes)
        actual = ops.grouped_gemm(x.to("cuda", kind), weight.to("cuda", kind), starts_of(sizes).to("cuda"))
        torch.testing.assert_close(actual.cpu(), expected, **TOLERANCE)
