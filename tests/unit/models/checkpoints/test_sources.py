import os
import shutil
import subprocess
import sys

import pytest

from rayinfer.errors import ModelLoadError, ModelNotFound
from rayinfer.models.checkpoints.model_folder import check_model_folder
from rayinfer.models.checkpoints.sources import find_local_model, resolve_model
from support.tiny_models.tiny_checkpoints import make_tiny_llama
from support.tiny_models.tiny_gguf import write_tiny_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def tiny_gguf(tiny, tmp_path_factory):
    return write_tiny_gguf(tiny, tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_a_whole_folder_is_taken_as_it_is(tiny, tmp_path, monkeypatch):
    assert resolve_model(str(tiny), cache=tmp_path) == tiny
    monkeypatch.chdir(tiny.parent)
    assert resolve_model(f"./{tiny.name}", cache=tmp_path) == tiny
    assert list(tmp_path.iterdir()) == []


def test_what_is_here_is_found_without_a_download(tiny, tiny_gguf, tmp_path):
    assert find_local_model(str(tiny), cache=tmp_path) == tiny
    converted = find_local_model(str(tiny_gguf), cache=tmp_path)
    assert converted == resolve_model(str(tiny_gguf), cache=tmp_path, progress=False)
    for name in ("smollm2-135m", "all-minilm-l6-v2", "/nowhere/model", "organization/name"):
        assert find_local_model(name, cache=tmp_path) is None


def test_a_sharded_folder_is_taken_as_it_is(tmp_path):
    folder = make_tiny_llama(tmp_path / "sharded", shards=3)
    assert resolve_model(str(folder)) == folder


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"])
def test_a_folder_without_a_file_that_it_needs_is_refused_by_that_file(tiny, tmp_path, name):
    shutil.copytree(tiny, tmp_path / "copy")
    (tmp_path / "copy" / name).unlink()
    with pytest.raises(ModelLoadError, match=rf"copy/{name} is missing") as refusal:
        resolve_model(str(tmp_path / "copy"))
    assert "\n" not in str(refusal.value)


def test_a_folder_without_one_of_its_shards_is_refused(tmp_path):
    (make_tiny_llama(tmp_path, shards=3) / "model-00003-of-00003.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"model-00003-of-00003\.safetensors is missing"):
        resolve_model(str(tmp_path))


def test_a_gguf_file_is_converted_once(tiny_gguf, tmp_path):
    folder = resolve_model(str(tiny_gguf), cache=tmp_path, progress=False)
    check_model_folder(folder)
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert resolve_model(str(tiny_gguf), cache=tmp_path, progress=False) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


def test_a_gguf_file_that_changed_is_converted_again(tiny_gguf, tmp_path):
    file = tmp_path / "model.gguf"
    shutil.copy(tiny_gguf, file)
    before = resolve_model(str(file), cache=tmp_path / "cache", progress=False)
    os.utime(file, ns=(1, 1))
    assert resolve_model(str(file), cache=tmp_path / "cache", progress=False) != before


def test_two_processes_that_convert_at_once_give_one_good_folder_without_torch(tiny_gguf, tmp_path):
    program = (
        "import sys; from pathlib import Path; from rayinfer.models.checkpoints.sources import resolve_model;"
        "print(resolve_model(sys.argv[1], cache=Path(sys.argv[2]), progress=False)); print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", program, tiny_gguf, tmp_path]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=60)[0].splitlines() for process in processes]
    folder = resolve_model(str(tiny_gguf), cache=tmp_path, progress=False)
    assert answers == [[str(folder), "False"]] * 2
    assert [path.name for path in (tmp_path / "gguf").iterdir() if not path.name.endswith(".lock")] == [folder.name]


def test_an_embedded_name_that_is_cached_is_not_fetched_again():
    folder = resolve_model("smollm2-135m")  # may download
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert resolve_model("smollm2-135m") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    check_model_folder(folder)


@pytest.mark.parametrize(
    "name", ["no-such-model", "", "./nowhere/model", "/nowhere/model", "weights/none.gguf", "a/b/c"]
)
def test_an_unknown_name_is_refused_with_the_embedded_names(name):
    with pytest.raises(ModelNotFound, match="smollm2-135m") as refusal:
        resolve_model(name)
    assert repr(name) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_file_that_is_no_gguf_is_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelLoadError, match=r"neither a folder nor a \.gguf file"):
        resolve_model(str(tmp_path / "model.safetensors"))
