"""GGUF files whose blocks are kept, beside the numbers that llama.cpp's own package reads from them."""

import shutil

import gguf
import numpy as np
import pytest
import torch

from rayinfer import LLM, SamplingParams
from rayinfer.errors import ConfigError
from rayinfer.models.gguf.conversion import convert_gguf
from rayinfer.models.gguf.kept_blocks import folder_with_blocks
from rayinfer.models.loader import load_decoder
from rayinfer.models.quantized.gguf_blocks import BLOCK_KINDS
from rayinfer.models.quantized.quantized_checkpoint import open_checkpoint
from rayinfer_kernels import ops
from support.golden.decoder_runs import logits_of
from support.tiny_models.tiny_checkpoints import change_config, make_tiny_llama, save_weights
from support.tiny_models.tiny_gguf import write_tiny_gguf

CPU = torch.device("cpu")
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
SETTINGS = {"dtype": "float32", "num_kv_blocks": 32, "block_size": 8}


def random_blocks(word, num_outputs, num_blocks):
    """Make bytes of any blocks whose numbers in float16 are finite."""
    kind = BLOCK_KINDS[word]
    blocks = np.random.default_rng(1).integers(256, size=(num_outputs, num_blocks, kind.num_bytes), dtype=np.uint8)
    scales = np.random.default_rng(2).uniform(0.001, 0.1, (num_outputs, num_blocks, 2)).astype(np.float16)
    as_bytes = scales.view(np.uint8)
    if word == "q6_k":
        blocks[..., -2:] = as_bytes[..., :2]
    else:
        width = 4 if word in ("q4_1", "q4_k") else 2
        blocks[..., :width] = as_bytes[..., :width]
    return blocks


@pytest.mark.parametrize("word", BLOCK_KINDS)
def test_each_kind_of_block_is_read_as_llama_cpp_does(word):
    blocks, kind = random_blocks(word, 6, 3), BLOCK_KINDS[word]
    wanted = gguf.quants.dequantize(blocks.reshape(6, -1), gguf.GGMLQuantizationType[word.upper()])
    matrix = kind.read(torch.from_numpy(blocks))
    assert matrix.codes.shape == (6, 3 * kind.num_numbers)
    torch.testing.assert_close(matrix.dequantize(), torch.from_numpy(wanted), atol=1e-6, rtol=1e-6)


@pytest.fixture(scope="module", params=["Q4_0", "Q4_1", "Q8_0"])
def file(request, tmp_path_factory):
    """A tiny Llama's file in one kind of block; the embedding is tied, and in blocks, too."""
    folder = tmp_path_factory.mktemp(request.param)
    original = make_tiny_llama(folder / "original", max_position_embeddings=64)
    return write_tiny_gguf(original, folder / "tiny.gguf", kind=gguf.GGMLQuantizationType[request.param])


def test_kept_blocks_stand_for_the_numbers_of_the_file(file, tmp_path):
    convert_gguf(file, tmp_path / "plain")
    convert_gguf(file, tmp_path / "kept", keeps_blocks=True)
    plain, kept = (open_checkpoint(tmp_path / name) for name in ("plain", "kept"))
    assert kept.tensor_names == plain.tensor_names
    for name, tensor in kept.tensors():
        assert torch.equal(tensor.bfloat16(), plain.read(name).bfloat16()), name
    sizes = [sum(each.stat().st_size for each in (tmp_path / name).glob("*.safetensors")) for name in ("kept", "plain")]
    assert sizes[0] < 0.6 * sizes[1]


def test_a_decoder_with_kept_blocks_computes_the_same(file, tmp_path, compiled_kernels):
    convert_gguf(file, tmp_path / "kept", keeps_blocks=True)
    plain, kept = (load_decoder(tmp_path / "kept", torch.float32, CPU, keeps_quantized=each) for each in (False, True))
    matrix = kept.model.layers[0].mlp.gate_up_proj
    assert matrix.packed.format in (ops.WeightFormat.INT4_GROUPS, ops.WeightFormat.INT8_GROUPS)
    torch.testing.assert_close(logits_of(kept), logits_of(plain), atol=1e-4, rtol=1e-4)


def test_an_engine_keeps_the_blocks_of_a_file(file, tmp_path, compiled_kernels):
    convert_gguf(file, tmp_path / "kept", keeps_blocks=True)
    plain = tmp_path / "plain"
    shutil.copytree(tmp_path / "kept", plain, ignore=shutil.ignore_patterns("*.safetensors*"))
    change_config(plain, without=("quantization_config",), dtype="float32")
    save_weights(plain, {name: tensor.float().clone() for name, tensor in open_checkpoint(tmp_path / "kept").tensors()})
    answers = []
    for model, load_format in ((plain, "auto"), (file, "gguf")):
        with LLM(str(model), load_format=load_format, **SETTINGS) as llm:
            (output,) = llm.generate(["Once upon a time"], GREEDY, use_tqdm=False)
            answers.append(output.outputs[0].token_ids)
    assert answers[0] == answers[1]


def test_a_folder_without_a_file_is_refused(tmp_path):
    folder = make_tiny_llama(tmp_path / "model")
    with pytest.raises(ConfigError, match="was not converted from one"):
        folder_with_blocks(folder)
    with pytest.raises(ConfigError, match="takes no quantization"):
        LLM(str(folder), load_format="gguf", quantization="int8", allow_inaccurate_quantization=True)


def test_a_file_that_changed_is_refused(tmp_path):
    original = make_tiny_llama(tmp_path / "original")
    file = write_tiny_gguf(original, tmp_path / "tiny.gguf")
    convert_gguf(file, tmp_path / "plain")
    with file.open("ab") as stream:
        stream.write(b"more")
    with pytest.raises(ConfigError, match="has changed"):
        folder_with_blocks(tmp_path / "plain")
    file.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        folder_with_blocks(tmp_path / "plain")
