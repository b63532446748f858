import os

import pytest

from rayinfer.errors import ModelLoadError
from rayinfer_deployments.cli.checked_folders import check_folder
from support.tiny_models.tiny_checkpoints import make_tiny_llama


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model folder; what is found good is remembered in this test's own cache."""
    monkeypatch.setenv("RAYINFER_CACHE", str(tmp_path / "cache"))
    return make_tiny_llama(tmp_path / "model")


def spoil_weights(folder):
    """Overwrite the weights such that only reading them shows it: their size and time stay."""
    weights = folder / "model.safetensors"
    status = weights.stat()
    weights.write_bytes(b"\xff" * status.st_size)
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_good_folder_is_read_once(folder):
    check_folder(folder)
    spoil_weights(folder)
    check_folder(folder)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_folder_is_read_again_when_a_file_has_changed(folder, file):
    check_folder(folder)
    spoil_weights(folder)
    os.utime(folder / file, ns=(1, 1))
    with pytest.raises(ModelLoadError, match=r"model\.safetensors is no safetensors file"):
        check_folder(folder)


def test_a_broken_folder_is_refused_every_time_also_when_it_was_good_before(folder):
    check_folder(folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    for _ in range(2):
        with pytest.raises(ModelLoadError, match=r"model\.safetensors"):
            check_folder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelLoadError, match=r"config\.json is missing"):
        check_folder(folder)
