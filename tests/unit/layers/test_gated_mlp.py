import torch
import torch.nn.functional as F

from rayinfer.layers.gated_mlp import GatedMLP


def test_the_gate_is_the_first_half_and_silu_goes_over_it_alone():
    mlp = GatedMLP(8, 12, bias=True)
    with torch.no_grad():
        for parameter in mlp.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(parameter.numel()))
    x = torch.randn(3, 8)
    weight, bias, rows = mlp.gate_up_proj.weight, mlp.gate_up_proj.bias, mlp.gate_up_proj.rows
    gate, up = (F.linear(x, weight[rows[name]], bias[rows[name]]) for name in ("gate_proj", "up_proj"))
    wanted = F.linear(F.silu(gate) * up, mlp.down_proj.weight, mlp.down_proj.bias)
    torch.testing.assert_close(mlp(x), wanted, atol=1e-5, rtol=1e-5)
