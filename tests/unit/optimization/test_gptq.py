import pytest
import torch

from rayinfer.optimization.gptq import choose_scales, gptq, round_to_grid
from rayinfer_kernels import ops


def correlated_inputs(num_tokens, num_inputs, seed=0):
    """Inputs that follow a few directions, of very different sizes, as a model's do."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(num_inputs // 3, num_inputs, generator=generator)
    draws = torch.randn(num_tokens, num_inputs // 3 + num_inputs, generator=generator)  # a token's in one row
    inputs = draws[:, : num_inputs // 3] @ directions + 0.1 * draws[:, num_inputs // 3 :]
    return inputs * torch.linspace(0.1, 3, num_inputs)


def random_weight(num_outputs, num_inputs, seed=1):
    return torch.randn(num_outputs, num_inputs, generator=torch.Generator().manual_seed(seed))


def loss(weight, quantized, inputs, wanted=None):
    wanted = inputs @ weight.T if wanted is None else wanted
    return ((inputs @ quantized.dequantize().T - wanted).square().mean() / wanted.square().mean()).item()


@pytest.mark.parametrize("num_inputs", [64, 90])
def test_products_change_far_less_than_with_plain_rounding_on_inputs_never_seen(num_inputs):
    weight, seen = random_weight(48, num_inputs), correlated_inputs(2000, num_inputs)
    unseen = correlated_inputs(3000, num_inputs)[2000:]
    plain = loss(weight, ops.quantize(weight, ops.WeightFormat.INT4_DYNAMIC), unseen)
    calibrated = loss(weight, gptq(weight, seen.T @ seen), unseen)
    assert calibrated < plain / 4


def test_the_result_is_one_that_can_be_packed():
    weight, inputs = random_weight(40, 70), correlated_inputs(500, 70)
    quantized = gptq(weight, inputs.T @ inputs)
    assert quantized.format is ops.WeightFormat.INT4_DYNAMIC
    assert quantized.q.dtype == torch.int8
    assert quantized.q.shape == weight.shape
    assert quantized.q.min() >= -8
    assert quantized.q.max() <= 7
    assert quantized.scales.shape == (40, 3)
    assert torch.equal(quantized.scales, quantized.scales.bfloat16().float())


def test_errors_that_the_inputs_already_carry_are_made_up_for():
    weight, wanted_inputs = random_weight(32, 64), correlated_inputs(2000, 64)
    inputs = wanted_inputs * 0.9 + 0.05 * wanted_inputs.roll(1, dims=1)  # what became of them on the way
    wanted, gram = wanted_inputs @ weight.T, inputs.T @ inputs
    ignored = loss(weight, gptq(weight, gram), inputs, wanted)
    made_up_for = loss(weight, gptq(weight, gram, (wanted_inputs - inputs).T @ inputs), inputs, wanted)
    assert made_up_for < ignored / 2  # half of the drift is a quarter of its square


def test_inputs_that_were_never_seen_do_no_harm():
    weight, inputs = random_weight(32, 64), correlated_inputs(200, 64)
    inputs[:, 10:20] = 0
    quantized = gptq(weight, inputs.T @ inputs)
    assert quantized.dequantize().isfinite().all()
    assert loss(weight, quantized, inputs) < 0.01
    assert gptq(weight, torch.zeros(64, 64)).dequantize().isfinite().all()


def test_a_weight_of_zeros_stays_zero():
    quantized = gptq(torch.zeros(32, 64), torch.eye(64))
    assert not quantized.q.any()
    assert quantized.scales.isfinite().all()


def test_a_scale_may_be_negative_to_put_the_largest_weight_on_the_longer_side():
    group = torch.linspace(-0.3, 1, 32)[None]
    scale = choose_scales(group, torch.ones(32))
    assert scale < 0
    assert round_to_grid(group, scale[:, None]).min() == -8


def test_the_scale_serves_the_important_inputs_best():
    group = torch.cat((torch.full((1, 1), 4.0), torch.full((1, 31), 0.29)), 1)
    important = torch.ones(32)
    important[0] = 0.0
    scales = {"large one": choose_scales(group, 1 - important), "small ones": choose_scales(group, important)}
    errors = {name: (round_to_grid(group, scale[:, None]) * scale - group).abs()[0] for name, scale in scales.items()}
    assert errors["large one"][0] < errors["small ones"][0]
    assert errors["small ones"][1] < errors["large one"][1]
