import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rayinfer.errors import ModelLoadError
from rayinfer.models.checkpoints.checkpoint import Checkpoint
from rayinfer.models.checkpoints.safetensors_writer import TensorSpec, write_safetensors
from support.tiny_models.tiny_checkpoints import make_tiny_llama

EMBEDDING = "model.embed_tokens.weight"


def resident_file_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssFile"))


def rewrite_header(file: Path, change) -> None:
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    change(header)
    changed = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(changed)) + changed + content[8 + length :])


def write_in_order(file: Path, tensors: dict[str, tuple[str, torch.Tensor]]) -> None:
    header, data = {}, b""
    for name, (dtype, tensor) in tensors.items():
        content = bytes(tensor.reshape(-1).view(torch.uint8).tolist())
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": offsets}
        data += content
    encoded = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)


def test_a_single_file_gives_the_very_tensors_that_were_saved(tmp_path):
    saved = load_file(make_tiny_llama(tmp_path, dtype="bfloat16") / "model.safetensors")
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.tensor_names == saved.keys()
    for name, tensor in checkpoint.tensors():
        assert torch.equal(tensor, saved[name])
        assert (checkpoint.shape(name), checkpoint.dtype(name)) == (tuple(saved[name].shape), torch.bfloat16)
        assert torch.equal(checkpoint.read(name), saved[name])


def test_shards_give_the_same_tensors_as_one_file(tmp_path):
    whole = Checkpoint(make_tiny_llama(tmp_path / "whole", tie=False))
    sharded = Checkpoint(make_tiny_llama(tmp_path / "sharded", tie=False, shards=3))
    assert sharded.tensor_names == whole.tensor_names
    assert all(torch.equal(tensor, whole.read(name)) for name, tensor in sharded.tensors())
    assert len(list(sharded.tensors())) == len(whole.tensor_names)


def test_only_the_named_tensors_are_read(tmp_path):
    checkpoint = Checkpoint(make_tiny_llama(tmp_path, shards=2))
    assert [name for name, _ in checkpoint.tensors([EMBEDDING])] == [EMBEDDING]


def test_every_dtype_and_empty_and_unaligned_tensors_are_read(tmp_path):
    saved = {
        "flags": ("BOOL", torch.tensor([True, False, True])),  # three bytes: what follows is not aligned
        "wide": ("F64", torch.arange(3, dtype=torch.float64)),
        "empty": ("F32", torch.empty(0, 4)),
        "half": ("F16", torch.arange(4, dtype=torch.float16).view(2, 2)),
        "scalar": ("I64", torch.tensor(7, dtype=torch.int64)),
        "eighths": ("F8_E4M3", torch.tensor([0.5, 2.0]).to(torch.float8_e4m3fn)),
        "bytes": ("U8", torch.arange(5, dtype=torch.uint8)),
    }
    write_in_order(tmp_path / "model.safetensors", saved)
    read = {name: tensor.clone() for name, tensor in Checkpoint(tmp_path).tensors()}
    assert read.keys() == saved.keys()
    for name, (_, tensor) in saved.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(read[name].to(torch.float64), tensor.to(torch.float64))


@pytest.mark.parametrize("num_tensors", [24, 1536], ids="{} tensors".format)
def test_reading_all_tensors_does_not_keep_the_file_in_memory(num_tensors, tmp_path):
    size = (24 << 20) // num_tensors
    specs = [TensorSpec(name=f"layer.{index}", shape=(size,)) for index in range(num_tensors)]
    write_safetensors(tmp_path / "model.safetensors", "F32", specs, (np.ones(size, dtype=np.float32) for _ in specs))
    checkpoint = Checkpoint(tmp_path)
    before = resident_file_bytes()
    peak = 0
    for _, tensor in checkpoint.tensors():
        assert tensor.sum() == size
        peak = max(peak, resident_file_bytes() - before)
    assert 4 * size / 2 < peak < 24 << 20  # the file has 96 MiB, a tensor four or one sixteenth


def test_a_tensor_kept_for_longer_than_its_turn_is_still_right(tmp_path):
    saved = load_file(make_tiny_llama(tmp_path) / "model.safetensors")
    kept = dict(Checkpoint(tmp_path).tensors())
    assert all(torch.equal(kept[name], tensor) for name, tensor in saved.items())


def test_a_missing_tensor_is_named_with_its_file(tmp_path):
    checkpoint = Checkpoint(make_tiny_llama(tmp_path))
    with pytest.raises(ModelLoadError, match=r"model\.safetensors: tensor 'model.nothing' is missing"):
        checkpoint.read("model.nothing")
    with pytest.raises(ModelLoadError, match=r"'model.nothing' is missing"):
        list(checkpoint.tensors([EMBEDDING, "model.nothing"]))


def test_a_truncated_file_is_refused_before_anything_is_read(tmp_path):
    file = make_tiny_llama(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors is truncated"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("content", "finding"),
    [
        (b"", "truncated"),
        (b"\x10\x00", "truncated"),
        (struct.pack("<Q", 1 << 20) + b"{}", "truncated"),
        (struct.pack("<Q", 1 << 62) + b"{}", "no safetensors file"),
        (struct.pack("<Q", 8) + b"not json", "corrupt safetensors header"),
        (struct.pack("<Q", 4) + b"[{}]", "corrupt safetensors header"),
        (struct.pack("<Q", 4) + b"{\xff\xfe}", "corrupt safetensors header"),
        (b"version https://git-lfs.example/spec/v1\n" * 3, "no safetensors file"),
    ],
)
def test_a_corrupt_header_is_named(tmp_path, content, finding):
    file = make_tiny_llama(tmp_path) / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(ModelLoadError, match=rf"model\.safetensors .*{finding}") as refusal:
        Checkpoint(tmp_path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"dtype": "F12"}, "unknown dtype 'F12'"),
        ({"shape": [1, 2]}, "cannot take"),
        ({"shape": "wide"}, "corrupt"),
        ({"shape": [-1]}, "corrupt"),
        ({"data_offsets": [0]}, "corrupt"),
        ({"data_offsets": [4, 4 + 4 * 384 * 64]}, "starts at byte"),
    ],
)
def test_an_entry_that_cannot_be_right_names_its_tensor(tmp_path, change, finding):
    file = make_tiny_llama(tmp_path) / "model.safetensors"
    rewrite_header(file, lambda header: header[EMBEDDING].update(change))
    with pytest.raises(ModelLoadError, match=finding) as refusal:
        Checkpoint(tmp_path)
    assert "model.safetensors" in str(refusal.value)


def test_a_missing_shard_is_named(tmp_path):
    (make_tiny_llama(tmp_path, shards=3) / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"model-00002-of-00003\.safetensors is missing"):
        Checkpoint(tmp_path)


def test_a_tensor_that_its_shard_lacks_is_named(tmp_path):
    index_file = make_tiny_llama(tmp_path, shards=2) / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    index["weight_map"]["model.ghost"] = "model-00001-of-00002.safetensors"
    index_file.write_text(json.dumps(index))
    with pytest.raises(ModelLoadError, match=r"model-00001-of-00002\.safetensors: tensor 'model.ghost' is missing"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": "../b.safetensors"}}'])
def test_a_broken_index_is_named(tmp_path, content):
    (make_tiny_llama(tmp_path, shards=2) / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelLoadError, match=r"model\.safetensors\.index\.json"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth"])
def test_pickled_weights_are_refused(tmp_path, name):
    (make_tiny_llama(tmp_path) / "model.safetensors").rename(tmp_path / name)
    with pytest.raises(ModelLoadError, match="only safetensors are read"):
        Checkpoint(tmp_path)
