"""Checkpoints with an adapter merged into their weights answer like the base with the adapter."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from rayinfer import LLM, LoRARequest, SamplingParams
from rayinfer.adapters.merged_checkpoint import merge_adapter
from rayinfer.errors import AdapterRefused, ConfigError, ModelLoadError
from support.tiny_models import tiny_adapters
from support.tiny_models.tiny_adapters import make_adapter
from support.tiny_models.tiny_architectures import DECODERS
from support.tiny_models.tiny_checkpoints import change_config, make_tiny_llama

PROMPTS = [[9, 8, 7, 60, 6], [31, 5] * 12]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", tie=False)


def tokens(folder, lora_request=None, **settings):
    with LLM(str(folder), dtype="float32", num_kv_blocks=64, num_threads=1, **settings) as llm:
        outputs = llm.generate(PROMPTS, GREEDY, lora_request=lora_request, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("name", ["llama", "phi3", "gpt-neox", "gpt2"])
def test_a_merged_model_has_the_tokens_of_its_base_with_the_adapter(name, tmp_path, folder):
    base = DECODERS[name](tmp_path / "base")
    for file in folder.glob("tokenizer*.json"):
        shutil.copy(file, base)
    adapter = make_adapter(tmp_path / "adapter", base, ranks={"0": 2}, seed=1, use_rslora=True)
    report = merge_adapter(base, adapter, tmp_path / "merged")
    adapted = tokens(base, LoRARequest("a", 1, str(adapter)), enable_lora=True)
    assert tokens(report.folder) == adapted
    assert tokens(base) != adapted
    expected = load_file(tiny_adapters.merge_adapter(tmp_path / "expected", base, adapter) / "model.safetensors")
    found = load_file(report.folder / "model.safetensors")
    for tensor, values in expected.items():
        torch.testing.assert_close(found[tensor], values, rtol=0, atol=1e-5)
    assert report.num_merged == sum(not torch.equal(found[each], old) for each, old in base_tensors(base).items())


def base_tensors(folder):
    return load_file(folder / "model.safetensors")


def test_shards_types_and_other_files_are_those_of_the_base(tmp_path):
    base = make_tiny_llama(tmp_path / "base", shards=3, dtype="bfloat16", hidden=128)
    (base / "pytorch_model.bin").write_bytes(b"pickle")
    (base / "modeling_own.py").write_text("code")
    adapter = make_adapter_of_shards(tmp_path, base)
    steps = []
    merge_adapter(base, adapter, tmp_path / "deep" / "merged", on_start=steps.append, on_progress=steps.append)
    merged = tmp_path / "deep" / "merged"
    kept = {path.name for path in base.iterdir()} - {"pytorch_model.bin"}
    assert {path.name for path in merged.iterdir()} == kept
    for name in kept:
        old, new = (base / name).read_bytes(), (merged / name).read_bytes()
        assert len(old) == len(new)
        assert name.endswith(".safetensors") or old == new
    changed = {
        name
        for shard in base.glob("*.safetensors")
        for name, tensor in load_file(shard).items()
        if not torch.equal(tensor, load_file(merged / shard.name)[name])
    }
    assert changed == {f"model.layers.{layer}.mlp.down_proj.weight" for layer in (0, 1)}
    assert sum(steps[1:]) == steps[0]
    assert not list(merged.parent.glob(".*"))


def make_adapter_of_shards(tmp_path, base):
    """Save an adapter of a checkpoint of several files, by one file that has all of it."""
    whole = tmp_path / "whole"
    whole.mkdir()
    tensors = {name: each for shard in base.glob("*.safetensors") for name, each in load_file(shard).items()}
    save_file(tensors, whole / "model.safetensors")
    return make_adapter(tmp_path / "adapter", whole, pattern=r".*\.down_proj")


def test_rows_are_merged_some_at_a_time(tmp_path, folder):
    adapter = make_adapter(tmp_path / "adapter", folder)
    whole = merge_adapter(folder, adapter, tmp_path / "whole")
    pieces = merge_adapter(folder, adapter, tmp_path / "pieces", elements_at_once=7 * 64 + 1)
    for name, tensor in base_tensors(whole.folder).items():
        torch.testing.assert_close(base_tensors(pieces.folder)[name], tensor, rtol=0, atol=1e-6)


def test_an_output_that_exists_is_replaced_only_if_that_is_wanted(tmp_path, folder):
    first, second = (make_adapter(tmp_path / name, folder, seed=seed) for seed, name in enumerate("ab"))
    output = tmp_path / "merged"
    merge_adapter(folder, first, output)
    before = base_tensors(output)
    with pytest.raises(ConfigError, match="exists: --overwrite replaces it"):
        merge_adapter(folder, second, output)
    assert all(torch.equal(each, before[name]) for name, each in base_tensors(output).items())
    (output / "left.txt").write_text("of the first")
    merge_adapter(folder, second, output, overwrite=True)
    assert not (output / "left.txt").exists()
    assert not all(torch.equal(each, before[name]) for name, each in base_tensors(output).items())
    other = tmp_path / "documents"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="no model folder"):
        merge_adapter(folder, first, other, overwrite=True)
    for near in (folder, folder.parent, folder / "below", first):
        with pytest.raises(ConfigError, match="must lie apart"):
            merge_adapter(folder, first, near, overwrite=True)


def test_what_cannot_be_merged_is_refused_and_leaves_nothing(tmp_path, folder):
    adapter, output = make_adapter(tmp_path / "adapter", folder), tmp_path / "merged"
    other = make_tiny_llama(tmp_path / "other", hidden=32)
    with pytest.raises(AdapterRefused, match="was it trained on another model"):
        merge_adapter(other, adapter, output)
    with pytest.raises(AdapterRefused, match="DoRA"):
        merge_adapter(folder, make_adapter(tmp_path / "dora", folder, use_dora=True), output)
    quantized = make_tiny_llama(tmp_path / "quantized")
    change_config(quantized, quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 32})
    with pytest.raises(ConfigError, match=r"is quantized \(gptq"):
        merge_adapter(quantized, adapter, output)
    change_config(quantized, quantization_config={"quant_method": "new-bits"})
    with pytest.raises(ModelLoadError, match="new-bits"):
        merge_adapter(quantized, adapter, output)
    half = make_tiny_llama(tmp_path / "half", dtype="float16")
    huge = make_adapter(tmp_path / "huge", half, size=1e6)
    with pytest.raises(AdapterRefused, match="beyond F16 once it is merged"):
        merge_adapter(half, huge, output)
    assert not output.exists()
    assert not list(tmp_path.glob(".*"))
    assert json.loads((folder / "config.json").read_text())  # the base is as it was
