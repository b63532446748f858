import pytest
import torch

import rayinfer_kernels
from rayinfer.layers.embedding import TokenEmbedding
from rayinfer.layers.linear import Linear
from rayinfer.layers.matrix import pack_matrices
from rayinfer_kernels import ops


class Movable(torch.nn.ModuleDict):
    def move(self):
        """Have torch copy every tensor: as far away as a machine without a GPU can bring them."""
        self._apply(lambda tensor: tensor.clone())


def make_model() -> Movable:
    model = Movable({"embedding": TokenEmbedding(50, 24), "linear": Linear(24, 70, bias=True)})
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


def in_eight_bits(linear, format):
    if format is ops.WeightFormat.FLOAT8_DYNAMIC:
        linear.use_packed(ops.quantize_float8(linear.weight))
    else:
        linear.use_packed(ops.pack_quantized(ops.quantize(linear.weight, format)))
    return linear.packed


def tensors_of(packed):
    return [each for each in (packed.panels, packed.scales, packed.sums) if each is not None]


@pytest.mark.parametrize("format", [ops.WeightFormat.FLOAT8_DYNAMIC, ops.WeightFormat.INT8_DYNAMIC], ids=str)
def test_what_is_packed_moves_with_its_module_and_stays_the_same_for_whoever_holds_it(format):
    model = make_model()
    packed, argument = in_eight_bits(model["linear"], format), model["linear"].packed.argument
    x = torch.randn(5, 24)
    products, before = model["linear"](x), tensors_of(packed)
    model.move()
    assert model["linear"].packed is packed
    assert packed.argument is argument
    for there, here in zip(tensors_of(packed), before, strict=True):
        assert there.data_ptr() != here.data_ptr()
        assert torch.equal(there.view(torch.uint8), here.view(torch.uint8))
    assert argument.panels == packed.panels.data_ptr()
    assert argument.scales == packed.scales.data_ptr()
    assert torch.equal(model["linear"](x), products)


@pytest.mark.parametrize("format", [ops.WeightFormat.FLOAT8_DYNAMIC, ops.WeightFormat.INT8_DYNAMIC], ids=str)
def test_nothing_of_a_packed_matrix_stays_behind_when_its_module_moves(format):
    linear = make_model()["linear"]
    packed = in_eight_bits(linear, format)
    linear.to("meta")
    assert {each.device.type for each in [*tensors_of(packed), linear.bias]} == {"meta"}
