import pytest
import torch

from rayinfer.layers.norms import LayerNorm, RMSNorm


def norm_with_weight(size, eps, **settings):
    norm = RMSNorm(size, eps, **settings)
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


@pytest.mark.parametrize("residual", [None, torch.zeros(5, 24)], ids=["alone", "with a residual"])
def test_a_weight_may_say_how_far_the_scale_is_from_one(residual):
    plain, offset = norm_with_weight(24, 1e-6), norm_with_weight(24, 1e-6, unit_offset=True)
    with torch.no_grad():
        offset.weight -= 1
    x = torch.randn(5, 24)
    torch.testing.assert_close(offset(x, residual), plain(x))


def test_a_scale_near_one_keeps_the_digits_that_bfloat16_would_lose():
    norm = norm_with_weight(24, 1e-6, unit_offset=True).to(torch.bfloat16)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(-0.01, 0.01, 24))
    x = torch.randn(200, 24).to(torch.bfloat16)
    exact = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * (1 + norm.weight.double())
    # Rounded once: never further off than half a step of bfloat16 (2**-8).
    torch.testing.assert_close(norm(x).double(), exact, atol=0, rtol=1.001 * 2**-8)


def norm_with_weights(size, eps):
    norm = LayerNorm(size, eps)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2, size))
        norm.bias.copy_(torch.linspace(1, -1, size))
    return norm


@pytest.mark.parametrize("eps", [1e-6, 1e-1])
def test_a_token_is_centered_divided_by_its_deviation_scaled_and_shifted(eps):
    norm = norm_with_weights(24, eps)
    x = torch.randn(5, 24) + 3
    centered = x - x.mean(-1, keepdim=True)
    wanted = centered / (centered.pow(2).mean(-1, keepdim=True) + eps).sqrt() * norm.weight + norm.bias
    torch.testing.assert_close(norm(x.clone()), wanted)


def test_with_a_residual_a_layer_norm_keeps_the_sum_in_the_residual():
    norm = norm_with_weights(24, 1e-6)
    x, residual = torch.randn(2, 5, 24)
    total = x + residual
    wanted = norm(total.clone())
    torch.testing.assert_close(norm(x, residual), wanted)
    torch.testing.assert_close(residual, total)
