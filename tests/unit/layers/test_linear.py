import torch

from rayinfer.layers.linear import Linear, StackedLinear


def filled(layer):
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(parameter.numel()))
    return layer


def test_a_linear_layer_multiplies_and_adds_its_bias():
    x = torch.randn(3, 5)
    plain, biased = filled(Linear(5, 7)), filled(Linear(5, 7, bias=True))
    torch.testing.assert_close(plain(x), x @ plain.weight.T)
    torch.testing.assert_close(biased(x), x @ biased.weight.T + biased.bias)


def test_a_stacked_layer_computes_its_parts_side_by_side():
    stacked = filled(StackedLinear(5, {"a": 4, "b": 2, "c": 2}, bias=True))
    x = torch.randn(3, 5)
    parts = stacked(x).split(stacked.widths, -1)
    for name, got in zip("abc", parts, strict=True):
        rows = stacked.rows[name]
        torch.testing.assert_close(got, x @ stacked.weight[rows].T + stacked.bias[rows])


def test_weights_take_no_gradients():
    assert not any(parameter.requires_grad for parameter in Linear(2, 2, bias=True).parameters())
