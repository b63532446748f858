import os

import pytest

from rayinfer.errors import ModelLoadError
from rayinfer_deployments.cli import checked_folders
from rayinfer_deployments.cli.checked_folders import check_folder
from support.tiny_models.tiny_checkpoints import make_tiny_llama


@pytest.fixture
def folder(tmp_path):
    return make_tiny_llama(tmp_path / "model")


@pytest.fixture
def looks(tmp_path, monkeypatch):
    """The folders that were really looked at; what is found good is remembered in this test's own cache."""
    monkeypatch.setenv("RAYINFER_CACHE", str(tmp_path / "cache"))
    looks, check = [], checked_folders._check
    monkeypatch.setattr(checked_folders, "_check", lambda folder: (looks.append(folder), check(folder)))
    return looks


def test_a_good_folder_is_looked_at_once(folder, looks):
    check_folder(folder)
    check_folder(folder)
    assert looks == [folder]


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_folder_is_looked_at_again_when_a_file_has_changed(folder, looks, file):
    check_folder(folder)
    os.utime(folder / file, ns=(1, 1))
    check_folder(folder)
    assert looks == [folder, folder]


def test_a_broken_folder_is_refused_every_time_also_when_it_was_good_before(folder, looks):
    check_folder(folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    for _ in range(2):
        with pytest.raises(ModelLoadError, match=r"model\.safetensors"):
            check_folder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelLoadError, match=r"config\.json is missing"):
        check_folder(folder)
    assert len(looks) == 3
