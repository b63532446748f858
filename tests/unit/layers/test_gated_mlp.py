import pytest
import torch
import torch.nn.functional as F

from rayinfer.layers.gated_mlp import GATES, GatedMLP

ACTIVATIONS = {"silu": F.silu, "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh")}


@pytest.mark.parametrize("activation", GATES)
def test_the_gate_is_the_first_half_and_the_activation_goes_over_it_alone(activation):
    mlp = GatedMLP(8, 12, bias=True, activation=activation)
    with torch.no_grad():
        for parameter in mlp.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(parameter.numel()))
    x = torch.randn(3, 8)
    weight, bias, rows = mlp.gate_up_proj.weight, mlp.gate_up_proj.bias, mlp.gate_up_proj.rows
    gate, up = (F.linear(x, weight[rows[name]], bias[rows[name]]) for name in ("gate_proj", "up_proj"))
    wanted = F.linear(ACTIVATIONS[activation](gate) * up, mlp.down_proj.weight, mlp.down_proj.bias)
    torch.testing.assert_close(mlp(x), wanted, atol=1e-5, rtol=1e-5)
