import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rayinfer.errors import ModelLoadError, UnsupportedArchitecture
from rayinfer.models.loader import check_checkpoint, load_decoder, torch_dtype
from rayinfer.models.model_config import read_model_config
from support.tiny_models.tiny_checkpoints import change_config, make_tiny_llama, save_weights

CPU = torch.device("cpu")


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_weights(folder, weights)


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_tensor_arrives_in_its_place_and_in_the_dtype_asked_for(shards, dtype, tmp_path):
    folder = make_tiny_llama(tmp_path / "model", tie=False, shards=shards, attention_bias=True)
    whole = make_tiny_llama(tmp_path / "whole", tie=False, attention_bias=True)
    weights = load_file(whole / "model.safetensors")
    decoder = load_decoder(folder, dtype, CPU)
    parameters = dict(decoder.named_parameters())
    assert sum(parameter.numel() for parameter in parameters.values()) == sum(w.numel() for w in weights.values())
    for name, weight in weights.items():
        place = decoder.checkpoint_slices()[name]
        target = parameters[place.parameter]
        got = target if place.index is None else target[place.index]
        assert got.dtype == dtype
        assert torch.equal(got, weight.to(dtype))


@pytest.mark.parametrize("name", ["model.layers.1.self_attn.k_proj.weight", "model.norm.weight", "lm_head.weight"])
def test_a_missing_tensor_is_named(name, tmp_path):
    folder = make_tiny_llama(tmp_path, tie=False)
    change_weights(folder, lambda weights: weights.pop(name))
    with pytest.raises(ModelLoadError, match=name) as caught:
        load_decoder(folder, torch.float32, CPU)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.v_proj.weight", "model.embed_tokens.weight"])
def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes(name, tmp_path):
    folder = make_tiny_llama(tmp_path)
    change_weights(folder, lambda weights: weights.update({name: torch.zeros(3, 64)}))
    with pytest.raises(ModelLoadError, match=rf"{name} has shape \(3, 64\), expected \((32|384), 64\)"):
        load_decoder(folder, torch.float32, CPU)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.2.mlp.up_proj.weight",
        "model.layers.0.mlp.q_proj.weight",
        "model.layers.0.self_attn.qkv_proj.weight",
        "surprise",
    ],
)
def test_a_tensor_too_many_is_named(name, tmp_path):
    folder = make_tiny_llama(tmp_path)
    change_weights(folder, lambda weights: weights.update({name: torch.zeros(64, 64)}))
    with pytest.raises(ModelLoadError, match=name):
        load_decoder(folder, torch.float32, CPU)


def test_quantized_numbers_are_not_taken_for_weights(tmp_path):
    folder = make_tiny_llama(tmp_path)
    name = "model.layers.0.mlp.down_proj.weight"
    change_weights(folder, lambda weights: weights.update({name: weights[name].to(torch.int8)}))
    with pytest.raises(ModelLoadError, match=f"{name} has dtype torch.int8"):
        load_decoder(folder, torch.float32, CPU)


def test_a_truncated_file_is_named(tmp_path):
    folder = make_tiny_llama(tmp_path)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors"):
        load_decoder(folder, torch.float32, CPU)


def test_a_missing_shard_is_named(tmp_path):
    folder = make_tiny_llama(tmp_path, shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelLoadError, match="model-00002-of-00003"):
        load_decoder(folder, torch.float32, CPU)


def test_a_config_of_another_depth_is_noticed(tmp_path):
    folder = make_tiny_llama(tmp_path)
    change_config(folder, **{"num_hidden_layers": 3})
    with pytest.raises(ModelLoadError, match=r"lacks model\.layers\.2\..* and more"):
        check_checkpoint(folder)


def test_an_unknown_architecture_is_refused_with_the_known_ones(tmp_path):
    folder = make_tiny_llama(tmp_path)
    change_config(folder, **{"architectures": ["MambaForCausalLM"]})
    with pytest.raises(UnsupportedArchitecture, match=r"MambaForCausalLM.*LlamaForCausalLM"):
        load_decoder(folder, torch.float32, CPU)


def test_auto_is_the_checkpoints_own_dtype(tmp_path):
    config = read_model_config(make_tiny_llama(tmp_path, dtype="bfloat16"))
    assert torch_dtype("auto", config) == torch.bfloat16
    assert torch_dtype("float32", config) == torch.float32


def test_an_unsupported_dtype_is_refused_by_name(tmp_path):
    folder = make_tiny_llama(tmp_path)
    change_config(folder, **{"dtype": "float64"})
    with pytest.raises(ModelLoadError, match="'float64'"):
        torch_dtype("auto", read_model_config(folder))


MEASURE = """
import sys, threading, time
from pathlib import Path
import torch
from rayinfer.models.loader import load_decoder

def resident_bytes(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

load_decoder(Path(sys.argv[1]), torch.float32, torch.device("cpu"))  # what first use of the code itself costs
Path("/proc/self/clear_refs").write_text("5")  # the peak starts afresh
before = resident_bytes("VmRSS")
decoder = load_decoder(Path(sys.argv[2]), getattr(torch, sys.argv[3]), torch.device("cpu"))
weights = sum(parameter.nbytes for parameter in decoder.parameters())
print((resident_bytes("VmHWM") - before) / weights, weights)
"""


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_memory_grows_by_little_more_than_the_weights_even_at_its_peak(dtype, tmp_path):
    small = make_tiny_llama(tmp_path / "small")
    # One wide layer more than many narrow ones: the largest single tensor is what may come on top.
    large = make_tiny_llama(tmp_path / "large", dtype="bfloat16", hidden=1024, layers=6, heads=8, vocab_size=8192)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(small), str(large), dtype],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    growth, weights = map(float, done.stdout.split())
    assert weights > 80e6
    assert 0.9 < growth < 1.3
