import os
import shutil

import pytest

from rayinfer.errors import ModelLoadError
from rayinfer.optimization.checkpoint_digest import checkpoint_digest
from support.tiny_models.tiny_checkpoints import make_tiny_llama


@pytest.fixture
def model(tmp_path):
    return make_tiny_llama(tmp_path / "model", shards=2)


def test_the_same_contents_elsewhere_have_the_same_digest(model, tmp_path):
    shutil.copytree(model, tmp_path / "copy")
    assert checkpoint_digest(model, tmp_path / "notes") == checkpoint_digest(tmp_path / "copy", tmp_path / "notes")


@pytest.mark.parametrize("name", ["config.json", "model-00002-of-00002.safetensors"])
def test_any_changed_file_changes_the_digest(model, tmp_path, name):
    before = checkpoint_digest(model, tmp_path / "notes")
    file = model / name
    contents = file.read_bytes()
    file.write_bytes(contents[:-1] + bytes([contents[-1] ^ 1]))
    assert checkpoint_digest(model, tmp_path / "notes") != before


def test_files_that_have_not_changed_are_not_read_again(model, tmp_path):
    before = checkpoint_digest(model, tmp_path / "notes")
    file = model / "model-00001-of-00002.safetensors"
    status = file.stat()
    file.write_bytes(bytes(status.st_size))  # in its place and with its time, as nobody would do by accident
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert checkpoint_digest(model, tmp_path / "notes") == before
    assert checkpoint_digest(model, tmp_path / "other notes") != before


def test_a_broken_note_is_written_anew(model, tmp_path):
    before = checkpoint_digest(model, tmp_path / "notes")
    (note,) = (tmp_path / "notes").iterdir()
    note.write_text("half a dig")
    assert checkpoint_digest(model, tmp_path / "notes") == before == note.read_text()


def test_notes_that_cannot_be_written_are_done_without(model, tmp_path):
    (tmp_path / "notes").write_text("a file stands here")
    assert checkpoint_digest(model, tmp_path / "notes")


def test_a_checkpoint_without_weights_is_refused(model, tmp_path):
    (model / "model.safetensors.index.json").unlink()
    with pytest.raises(ModelLoadError, match=r"model\.safetensors is missing"):
        checkpoint_digest(model, tmp_path / "notes")
