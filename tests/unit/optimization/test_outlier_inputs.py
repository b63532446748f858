"""Splitting of large inputs: which are split, what it gains, and that all paths of a decoder's weights keep it."""

import pytest
import torch
from safetensors.torch import load_file

from rayinfer.models.loader import load_decoder
from rayinfer.optimization.outlier_inputs import choose_copied_inputs, widen_weight
from rayinfer.optimization.packed_cache import PackedCache
from rayinfer.optimization.packed_weights import load_packed_decoder
from rayinfer_kernels import ops
from support.golden.decoder_runs import logits_of
from support.tiny_models.tiny_checkpoints import make_tiny_llama, save_weights

CPU = torch.device("cpu")
LARGE, OUTLIER = 64.0, 3


@pytest.fixture(scope="module", params=[False, True], ids=["own head", "tied head"])
def folder(request, tmp_path_factory):
    """Make a model with one input of the head that is far larger than the others."""
    folder = make_tiny_llama(tmp_path_factory.mktemp("llama"), tie=request.param, layers=2, max_position_embeddings=64)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][OUTLIER] *= LARGE
    weights["model.embed_tokens.weight" if request.param else "lm_head.weight"][:, OUTLIER] /= LARGE
    save_weights(folder, weights)
    return folder


def load(folder, cache):
    return load_packed_decoder(folder, torch.float32, CPU, quantization="int8-dynamic", cache=PackedCache(cache))


def head_of(decoder):
    return decoder.get_submodule(decoder.head_name)


def test_the_one_outlier_is_split_in_the_head_and_nothing_else_is(folder, tmp_path):
    decoder = load(folder, tmp_path)
    assert set(head_of(decoder).copied_inputs) == {OUTLIER}
    others = [module for module in decoder.modules() if hasattr(module, "copied_inputs") and module != head_of(decoder)]
    assert others
    assert not any(module.copied_inputs for module in others)


def test_a_head_with_an_outlier_split_is_nearer_to_the_plain_head():
    torch.manual_seed(0)
    x, weight = torch.randn(300, 64), torch.randn(320, 64)
    x[:, OUTLIER] *= LARGE
    weight[:, OUTLIER] /= LARGE
    copied = choose_copied_inputs(x, weight)
    inputs = torch.tensor([*range(64), *copied])
    shares = 1 / inputs.bincount()[inputs]

    def error(rows, matrix):
        packed = ops.pack_quantized(ops.quantize(matrix, ops.WeightFormat.INT8_DYNAMIC))
        return (ops.linear(rows, packed) - x @ weight.T).square().mean().sqrt()

    assert error(x[:, inputs] * shares, widen_weight(weight, copied)) < 0.5 * error(x, weight)


def test_inputs_of_one_size_are_not_split():
    torch.manual_seed(0)
    assert choose_copied_inputs(torch.rand(300, 64).sub(0.5), torch.randn(320, 64)) == []


def test_a_split_head_comes_back_from_the_cache_as_it_was(folder, tmp_path, compiled_kernels):
    first, second = load(folder, tmp_path), load(folder, tmp_path)
    assert head_of(second).copied_inputs == head_of(first).copied_inputs != ()
    assert torch.equal(logits_of(first), logits_of(second))


def test_a_split_embedding_gathers_rows_of_the_models_width(folder, tmp_path):
    plain, split = load_decoder(folder, torch.float32, CPU), load(folder, tmp_path)
    wanted = plain.model.embed_tokens.weight[[5, 9]]
    rows = split.model.embed_tokens(torch.tensor([5, 9], dtype=torch.int32))
    assert rows.is_contiguous()
    torch.testing.assert_close(rows, wanted, rtol=0, atol=float(wanted.abs().max()) / 127)


def test_scores_of_a_split_head_do_not_depend_on_the_batch(folder, tmp_path, compiled_kernels):
    head = load(folder, tmp_path)
    hidden = torch.randn(17, 64, generator=torch.Generator().manual_seed(0))
    together = head.logits(hidden)
    for row in range(17):
        assert torch.equal(head.logits(hidden[row : row + 1])[0], together[row])
