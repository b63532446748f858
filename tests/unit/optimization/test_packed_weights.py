"""Decoders through the cache: what is kept, what is found again, and what the modes make of a model's logits."""

import os

import psutil
import pytest
import torch
from safetensors.torch import load_file

from rayinfer.errors import ConfigError, ModelLoadError
from rayinfer.layers.matrix import Matrix
from rayinfer.models.loader import load_decoder
from rayinfer.optimization.packed_cache import PackedCache
from rayinfer.optimization.packed_entries import DATA_FILE
from rayinfer.optimization.packed_weights import DIGESTS, load_packed_decoder
from rayinfer.optimization.quantization import load_float8_decoder
from rayinfer_kernels import ops
from support.fakes.recorded_steps import ended, recorded_steps
from support.golden.decoder_runs import logits_of
from support.golden.encoder_decoder_runs import make_tiny_t5
from support.golden.invariance_requests import make_sparse_model
from support.tiny_models.tiny_checkpoints import make_tiny_llama, save_weights

CPU = torch.device("cpu")
MODES = (None, "int8", "int8-dynamic", "int4")
LENGTH = 64  # that `logits_of` computes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_llama(
        tmp_path_factory.mktemp("llama"), tie=False, attention_bias=True, max_position_embeddings=LENGTH, layers=3
    )


def load(folder, cache, quantization=None, dtype=torch.float32):
    return load_packed_decoder(
        folder, dtype, CPU, quantization=quantization, cache=PackedCache(cache), worth_keeping_bytes=0
    )


def entries(cache):
    return sorted(path.name for path in cache.iterdir() if not path.name.startswith(".") and path.name != DIGESTS)


def blank_the_weights(folder):
    """Leave nothing to be read in the checkpoint's file, and its size and time as they were."""
    file = folder / "model.safetensors"
    status = file.stat()
    file.write_bytes(bytes(status.st_size))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


# How far logits may lie from float32's, by their root mean square; a random model magnifies every difference.
DISTANCES = {"int8": (0.01, 0.06), "int8-dynamic": (0.01, 0.08), "int4": (0.1, 0.5)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", DISTANCES)
def test_each_mode_stays_near_float32(mode, dtype, folder, tmp_path, compiled_kernels):
    wanted = logits_of(load(folder, tmp_path))
    difference = logits_of(load(folder, tmp_path, mode, dtype), dtype) - wanted
    least, most = DISTANCES[mode]
    assert least < (difference.square().mean() / wanted.square().mean()).sqrt() < most


@pytest.mark.parametrize("mode", MODES)
def test_a_second_load_reads_no_weights_of_the_checkpoint(mode, tmp_path, compiled_kernels):
    folder = make_tiny_llama(tmp_path / "llama", max_position_embeddings=LENGTH)
    first = logits_of(load(folder, tmp_path / "packed", mode))
    blank_the_weights(folder)
    assert torch.equal(logits_of(load(folder, tmp_path / "packed", mode)), first)


def test_without_compiled_kernels_the_reference_computes_the_same_modes(folder, tmp_path):
    wanted = logits_of(load(folder, tmp_path))
    for mode in ("int8", "int8-dynamic"):
        difference = logits_of(load(folder, tmp_path, mode)) - wanted
        assert 0 < (difference.square().mean() / wanted.square().mean()).sqrt() < DISTANCES[mode][1]


def test_modes_types_and_changed_checkpoints_have_entries_of_their_own(tmp_path):
    folder, cache = make_tiny_llama(tmp_path / "llama"), tmp_path / "packed"
    for mode in (None, "int8", "int8-dynamic", None, "int8"):
        load(folder, cache, mode)
    assert len(entries(cache)) == 3
    load(folder, cache, dtype=torch.bfloat16)
    assert len(entries(cache)) == 4
    before = logits_of(load(folder, cache))
    make_tiny_llama(folder, seed=1)
    assert not torch.equal(logits_of(load(folder, cache)), before)
    assert len(entries(cache)) == 5


def test_a_damaged_entry_is_made_again(folder, tmp_path):
    before = logits_of(load(folder, tmp_path, "int8"))
    (data,) = tmp_path.glob(f"*/{DATA_FILE}")
    data.write_bytes(data.read_bytes()[:-100] + bytes(100))
    assert torch.equal(logits_of(load(folder, tmp_path, "int8")), before)


def test_small_models_are_not_kept_unless_they_were_calibrated(tmp_path):
    folder = make_tiny_llama(tmp_path / "llama", max_position_embeddings=16)
    cache = PackedCache(tmp_path / "packed")
    load_packed_decoder(folder, torch.float32, CPU, quantization="int8", cache=cache)
    assert not cache.folder.exists()
    load_packed_decoder(folder, torch.float32, CPU, quantization="int4", cache=cache)
    assert len(entries(cache.folder)) == 1


def test_mapped_weights_are_given_back_with_the_decoder(tmp_path):
    folder = make_tiny_llama(tmp_path / "llama", hidden=512, vocab_size=4096, layers=1)
    decoder = load(folder, tmp_path / "packed")
    (data,) = tmp_path.glob(f"packed/*/{DATA_FILE}")

    def is_mapped():
        return any(each.path == str(data) for each in psutil.Process().memory_maps())

    assert is_mapped()
    del decoder
    assert not is_mapped()


def test_what_cannot_be_quantized_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(ConfigError, match="'int8' is for decoder-only models"):
        load(make_tiny_t5(tmp_path / "t5"), tmp_path / "packed", "int8")
    with pytest.raises(ConfigError, match="'int4' is not supported for mixtures of experts"):
        load(make_sparse_model(tmp_path / "sparse"), tmp_path / "packed", "int4")
    assert not (tmp_path / "packed").exists()


def test_a_checkpoint_that_is_gone_is_named(folder, tmp_path):
    gone = make_tiny_llama(tmp_path / "gone")
    load(gone, tmp_path / "packed")
    (gone / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"model\.safetensors is missing"):
        load(gone, tmp_path / "packed")


def test_a_model_whose_scores_are_no_numbers_gets_no_four_bits(tmp_path):
    folder = make_tiny_llama(tmp_path / "llama", max_position_embeddings=LENGTH)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"][3, 5] = float("nan")
    save_weights(folder, weights)
    with pytest.raises(ModelLoadError, match=r"llama: the model cannot write .* no numbers"):
        load(folder, tmp_path / "packed", "int4")
    assert not entries(tmp_path / "packed")


def test_eight_bits_for_a_gpu_replace_each_matrix_of_a_layer_as_soon_as_it_is_read(folder, tmp_path):
    with pytest.raises(ConfigError, match="'fp8' needs a GPU, and this engine runs on cpu"):
        load(folder, tmp_path, "fp8")
    decoder = load_float8_decoder(folder, torch.bfloat16, CPU)
    matrices = {name: each for name, each in decoder.named_modules() if isinstance(each, Matrix)}
    formats = {name: None if each.packed is None else each.packed.format for name, each in matrices.items()}
    within = {name for name in matrices if ".layers." in name}
    assert len(within) == 3 * 4
    assert formats == {name: ops.WeightFormat.FLOAT8_DYNAMIC if name in within else None for name in matrices}
    # What is left in bfloat16 is what no layer multiplies by, and the layers' norms and biases.
    assert sum(each.numel() for name, each in decoder.named_parameters() if name.endswith("proj.weight")) == 0
    expected = logits_of(load(folder, tmp_path), torch.float32)
    distance = (logits_of(decoder, torch.bfloat16) - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert 0.01 < distance < 0.4


def test_no_two_matrices_are_held_before_they_are_rounded(folder):
    whole = []

    def look(decoder, name):
        there = [each for key, each in decoder.named_parameters() if not each.is_meta and key.endswith("proj.weight")]
        whole.append(len(there))
        owner = decoder.get_submodule(name.rpartition(".")[0])
        if name.endswith("proj.weight"):
            owner.use_packed(ops.quantize_float8(owner.weight))

    load_decoder(folder, torch.float32, CPU, when_filled=look)
    assert 1 <= max(whole) <= 4  # of one layer, whose tensors stand between one another in the file


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_the_first_load_reports_how_weights_are_made_and_the_second_that_they_are_mapped(
    folder, tmp_path, quantization
):
    with recorded_steps() as first:
        load(folder, tmp_path / "cache", quantization)
    making = ["reading the checkpoint", *(["quantizing weights to int8"] if quantization else []), "packing weights"]
    keeping = "keeping packed weights for the next start"
    assert ended(first) == ["checking which checkpoint it is", *making, keeping, "mapping packed weights"]
    with recorded_steps() as second:
        load(folder, tmp_path / "cache", quantization)
    assert ended(second) == ["checking which checkpoint it is", "mapping packed weights"]
