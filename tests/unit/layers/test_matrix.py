import torch

import rayinfer_kernels
from rayinfer.layers.embedding import TokenEmbedding
from rayinfer.layers.linear import Linear
from rayinfer.layers.matrix import pack_matrices


def make_model() -> torch.nn.ModuleDict:
    model = torch.nn.ModuleDict({"embedding": TokenEmbedding(50, 24), "linear": Linear(24, 70, bias=True)})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def test_packed_matrices_give_the_same_rows_and_products_and_are_held_once(compiled_kernels):
    model = make_model()
    token_ids, x = torch.tensor([3, 49, 0, 3]), torch.randn(5, 24)
    rows, products, logits = model["embedding"](token_ids), model["linear"](x), model["embedding"].multiply(x)
    pack_matrices(model)
    assert [name for name, _ in model.named_parameters()] == ["linear.bias"]
    assert torch.equal(model["embedding"](token_ids), rows)
    torch.testing.assert_close(model["linear"](x), products)
    torch.testing.assert_close(model["embedding"].multiply(x), logits)


def test_matrices_that_no_kernel_packs_stay_as_they_are():
    rayinfer_kernels.configure(None)
    model = make_model()
    x = torch.randn(5, 24)
    products = model["linear"](x)
    pack_matrices(model)
    assert len(list(model.parameters())) == 3
    assert torch.equal(model["linear"](x), products)
