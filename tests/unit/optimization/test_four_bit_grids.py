import pytest
import torch
from safetensors.torch import load_file

from rayinfer.models.loader import load_decoder
from rayinfer.optimization.four_bit_grids import keep_grid
from rayinfer.optimization.packed_cache import PackedCache
from rayinfer.optimization.packed_weights import load_packed_decoder
from rayinfer.optimization.quantization import matrix_formats
from rayinfer_kernels import ops
from support.golden.decoder_runs import logits_of
from support.tiny_models.tiny_checkpoints import make_tiny_llama, save_weights

CPU = torch.device("cpu")


def rounded_before(shape, num_values=16, seed=0):
    """A weight as a file of Q4_1 gives it: each group of 32 inputs has a step and a least number of its own."""
    generator = torch.Generator().manual_seed(seed)
    groups = (*shape[:-1], shape[-1] // 32)
    steps = (0.5 + torch.rand(groups, generator=generator)) * 0.02
    least = -steps * (8 + torch.randn(groups, generator=generator))
    numbers = torch.randint(num_values, (*groups, 32), generator=generator)
    return (numbers * steps[..., None] + least[..., None]).view(shape)


@pytest.mark.parametrize("num_values", [16, 11, 2, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_weight_that_was_rounded_to_blocks_before_keeps_its_numbers(dtype, num_values):
    weight = rounded_before((600, 96), num_values).to(dtype)
    kept = keep_grid(weight)
    # Off by the rounding of scales to bfloat16, and of offsets to eight bits of the largest in their row.
    assert ((kept.dequantize() - weight.float()).abs().amax() < 0.006).all()
    assert (kept.dequantize() - weight.float()).square().mean().sqrt() < 0.002
    plain = ops.quantize(weight, ops.WeightFormat.INT4_DYNAMIC).dequantize()
    assert num_values < 16 or (plain - weight.float()).square().mean().sqrt() > 0.006


def test_numbers_are_those_of_the_file():
    numbers = torch.arange(32).expand(4, 32) % 16
    kept = keep_grid(numbers * 0.25 - 3.0)
    assert torch.equal(kept.q.int(), numbers - 8)
    assert torch.equal(kept.scales, torch.full((4, 1), 0.25))
    torch.testing.assert_close(kept.dequantize(), numbers * 0.25 - 3.0, atol=1e-3, rtol=0)


def test_a_weight_of_zeros_stays_zero():
    assert not keep_grid(torch.zeros(4, 64)).dequantize().any()


@pytest.mark.parametrize("place", [(0, 0), (590, 95)])
def test_a_weight_with_a_single_group_off_the_grid_is_refused(place):
    weight = rounded_before((600, 96))
    assert keep_grid(weight) is not None
    weight[place] += 0.005
    assert keep_grid(weight) is None
    assert keep_grid(torch.randn(64, 64)) is None
    assert keep_grid(rounded_before((8, 64))[:, :40]) is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Make a model all of whose layers were rounded before, but for one product."""
    folder = make_tiny_llama(tmp_path_factory.mktemp("llama"), max_position_embeddings=64, layers=2)
    weights = load_file(folder / "model.safetensors")
    for number, name in enumerate(sorted(weights)):
        if "_proj" in name and "layers.1.mlp.down_proj" not in name:
            weights[name] = 8 * rounded_before(weights[name].shape, seed=number)
    save_weights(folder, weights)
    return folder


@pytest.mark.usefixtures("one_thread")
def test_int4_leaves_such_products_as_they_are_and_calibrates_the_others(folder, tmp_path):
    cache = PackedCache(tmp_path)
    made, found = (load_packed_decoder(folder, torch.float32, CPU, quantization="int4", cache=cache) for _ in range(2))
    original = load_decoder(folder, torch.float32, CPU)
    four_bits = [name for name, each in matrix_formats(original, "int4").items() if "layers" in name]
    assert len(four_bits) == 8
    for name in four_bits:
        packed, weight = made.get_submodule(name).packed, original.get_submodule(name).weight
        assert (not packed.has_offsets) == (name == "model.layers.1.mlp.down_proj")
        error = (packed.rows(torch.arange(packed.num_rows)) - weight).norm() / weight.norm()
        assert error < (0.02 if packed.has_offsets else 0.2), name
    assert torch.equal(logits_of(found), logits_of(made))
