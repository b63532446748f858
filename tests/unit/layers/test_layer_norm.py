import pytest
import torch

from rayinfer.layers.layer_norm import LayerNorm


def norm_with_weights(size, eps):
    norm = LayerNorm(size, eps)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2, size))
        norm.bias.copy_(torch.linspace(1, -1, size))
    return norm


@pytest.mark.parametrize("eps", [1e-6, 1e-1])
def test_a_token_is_centred_divided_by_its_deviation_scaled_and_shifted(eps):
    norm = norm_with_weights(24, eps)
    x = torch.randn(5, 24) + 3
    centred = x - x.mean(-1, keepdim=True)
    wanted = centred / (centred.pow(2).mean(-1, keepdim=True) + eps).sqrt() * norm.weight + norm.bias
    torch.testing.assert_close(norm(x.clone()), wanted)


def test_with_a_residual_the_sum_is_normed_and_stays_in_the_residual():
    norm = norm_with_weights(24, 1e-6)
    x, residual = torch.randn(2, 5, 24)
    total = x + residual
    wanted = norm(total.clone())
    torch.testing.assert_close(norm(x, residual), wanted)
    torch.testing.assert_close(residual, total)
