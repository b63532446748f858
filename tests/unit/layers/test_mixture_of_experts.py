import pytest
import torch
import torch.nn.functional as F

from rayinfer.layers.matrix import pack_matrices
from rayinfer.layers.mixture_of_experts import MixtureOfExperts

SHAPES = [  # hidden_size, intermediate_size, num_experts, experts_per_token
    (16, 24, 8, 2),
    (17, 5, 3, 1),
    (32, 48, 4, 4),
    (40, 33, 60, 6),
    (8, 8, 1, 1),
]


def make_layer(shape: tuple[int, int, int, int], *, renormalize: bool = True) -> MixtureOfExperts:
    hidden_size, intermediate_size, num_experts, experts_per_token = shape
    layer = MixtureOfExperts(
        hidden_size,
        intermediate_size,
        num_experts=num_experts,
        experts_per_token=experts_per_token,
        renormalize=renormalize,
    )
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.5, generator=torch.Generator().manual_seed(parameter.numel()))
    return layer


def answer_token_by_token(layer: MixtureOfExperts, x: torch.Tensor, shape, renormalize: bool) -> torch.Tensor:
    gate_up, down = layer.experts.gate_up_proj.weight, layer.experts.down_proj.weight
    out = torch.zeros_like(x)
    for i, token in enumerate(x):
        probabilities = (layer.gate.weight @ token).softmax(0)
        chosen = probabilities.argsort(descending=True)[: shape[3]]
        weights = probabilities[chosen] / (probabilities[chosen].sum() if renormalize else 1)
        for weight, expert in zip(weights, chosen, strict=True):
            gate, up = (gate_up[expert] @ token).chunk(2)
            out[i] += weight * (down[expert] @ (F.silu(gate) * up))
    return out


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("is_packed", [True, False])
def test_each_token_gets_the_weighted_answers_of_its_likeliest_experts(compiled_kernels, shape, renormalize, is_packed):
    layer, x = make_layer(shape, renormalize=renormalize), torch.randn(50, shape[0])
    expected = answer_token_by_token(layer, x, shape, renormalize)
    if is_packed:
        pack_matrices(layer)
        assert not list(layer.parameters())
    for num_tokens in (50, 1, 0):
        torch.testing.assert_close(layer(x[:num_tokens]), expected[:num_tokens], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_token_gets_the_same_answer_to_the_bit_alone_and_in_any_batch(compiled_kernels, shape):
    layer, x = make_layer(shape), torch.randn(70, shape[0])
    pack_matrices(layer)
    together = layer(x)
    assert torch.equal(layer(x.flip(0)).flip(0), together)
    for start, end in ((0, 1), (1, 8), (8, 9), (9, 43), (43, 70)):
        assert torch.equal(layer(x[start:end]), together[start:end])


def test_tokens_that_all_go_to_one_expert_leave_the_others_idle(compiled_kernels):
    layer, x = make_layer((16, 24, 8, 1)), torch.rand(30, 16)
    with torch.no_grad():
        layer.gate.weight.zero_()
        layer.gate.weight[5] = 1.0
        layer.experts.gate_up_proj.weight[torch.arange(8) != 5] = float("nan")
    expected = answer_token_by_token(layer, x, (16, 24, 8, 1), True)
    pack_matrices(layer)
    torch.testing.assert_close(layer(x), expected, atol=1e-4, rtol=1e-4)


def test_a_token_that_is_not_a_number_spoils_no_other(compiled_kernels):
    layer, x = make_layer((16, 24, 8, 2)), torch.randn(30, 16)
    pack_matrices(layer)
    clean = layer(x)
    x[7] = float("nan")
    spoilt = layer(x)
    assert spoilt[7].isnan().all()
    assert torch.equal(spoilt[:7], clean[:7])
    assert torch.equal(spoilt[8:], clean[8:])


def test_the_checkpoint_may_hold_experts_one_by_one_or_all_in_one_tensor():
    layer = make_layer((16, 24, 3, 2))
    gate_up = layer.experts.gate_up_proj.checkpoint_slices("mlp.experts.gate_up_proj")
    single = [f"mlp.experts.{expert}.{part}.weight" for expert in range(3) for part in ("gate_proj", "up_proj")]
    assert list(gate_up) == [*single, "mlp.experts.gate_up_proj"]
    assert gate_up["mlp.experts.gate_up_proj"].replaces == set(single)
    up = gate_up["mlp.experts.2.up_proj.weight"]
    assert up.parameter == "mlp.experts.gate_up_proj.weight"
    assert torch.equal(layer.experts.gate_up_proj.weight[up.index], layer.experts.gate_up_proj.weight[2, 24:])
