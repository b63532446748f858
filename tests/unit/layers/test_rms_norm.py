import pytest
import torch

from rayinfer.layers.rms_norm import RMSNorm


def norm_with_weight(size, eps):
    norm = RMSNorm(size, eps)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2, size))
    return norm


@pytest.mark.parametrize("eps", [1e-6, 1e-1])
def test_a_token_is_divided_by_its_root_mean_square(eps):
    norm = norm_with_weight(24, eps)
    x = torch.randn(5, 24)
    wanted = x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * norm.weight
    torch.testing.assert_close(norm(x.clone()), wanted)


def test_with_a_residual_the_sum_is_normed_and_stays_in_the_residual():
    norm = norm_with_weight(24, 1e-6)
    x, residual = torch.randn(2, 5, 24)
    total = x + residual
    wanted = norm(total.clone())
    torch.testing.assert_close(norm(x, residual), wanted)
    torch.testing.assert_close(residual, total)
