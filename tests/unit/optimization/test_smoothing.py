import pytest
import torch
from safetensors.torch import load_file

from rayinfer.models.loader import load_decoder
from rayinfer.optimization.quantization import matrix_formats
from rayinfer.optimization.smoothing import choose_scales, smooth_decoder
from rayinfer_kernels import ops
from support.golden.decoder_runs import logits_of
from support.tiny_models.tiny_checkpoints import make_tiny_llama, save_weights

CPU = torch.device("cpu")
LARGE = 64.0
READERS = {  # of each norm
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Make a model that computes what any does, with some inputs of each product far larger than the others."""
    folder = make_tiny_llama(tmp_path_factory.mktemp("llama"), tie=False, attention_bias=True, layers=2)
    weights = load_file(folder / "model.safetensors")
    for path in ("model.layers.0", "model.layers.1"):
        for norm, parts in READERS.items():
            weights[f"{path}.{norm}.weight"][3] *= LARGE
            for part in parts:
                weights[f"{path}.{part}.weight"][:, 3] /= LARGE
        weights[f"{path}.mlp.up_proj.weight"][5] *= LARGE
        weights[f"{path}.mlp.down_proj.weight"][:, 5] /= LARGE
    save_weights(folder, weights)
    return folder


def quantized(decoder):
    for name, format in matrix_formats(decoder, "int8-dynamic").items():
        matrix = decoder.get_submodule(name)
        matrix.use_packed(ops.pack_quantized(ops.quantize(matrix.weight, format), is_gated=matrix.is_gated))
    return decoder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_smoothed_decoder_computes_the_same(dtype, folder):
    plain, smoothed = (load_decoder(folder, dtype, CPU) for _ in range(2))
    smooth_decoder(smoothed, folder, dtype)
    assert not torch.equal(
        smoothed.model.layers[0].input_layernorm.weight, plain.model.layers[0].input_layernorm.weight
    )
    torch.testing.assert_close(logits_of(smoothed, dtype), logits_of(plain, dtype), rtol=0, atol=1e-5)


def test_rows_of_eight_bits_lose_less_where_few_inputs_are_large(folder):
    wanted = logits_of(load_decoder(folder, torch.float32, CPU))
    smoothed = load_decoder(folder, torch.float32, CPU)
    smooth_decoder(smoothed, folder, torch.float32)
    plain = quantized(load_decoder(folder, torch.float32, CPU))
    errors = [(logits_of(each) - wanted).square().mean().sqrt() for each in (quantized(smoothed), plain)]
    assert errors[0] < 0.5 * errors[1]


def test_scales_are_powers_of_two_that_take_from_large_inputs_and_leave_unused_ones():
    x, weight = torch.randn(96, 40), torch.randn(30, 40)
    x[:, 3] *= 100
    x[:, 4] = 0
    scales = choose_scales(x, weight)
    assert torch.equal(scales.log2(), scales.log2().round())
    assert scales[3] >= 4 * scales.median()
    assert scales[4] == 1
