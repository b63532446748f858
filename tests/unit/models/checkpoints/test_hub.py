import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.fakes.hub_stub import hub_stub
from support.tiny_models.tiny_checkpoints import make_tiny_llama

# Resolves every name given; `huggingface_hub` reads its environment when it is imported, hence a process of its own.
PROGRAM = """
import sys
from rayinfer.errors import ModelLoadError
from rayinfer.models.checkpoints.sources import resolve_model
for name in sys.argv[1:]:
    try:
        print("found", resolve_model(name, progress=False))
    except ModelLoadError as error:
        print(type(error).__name__, error)
print("torch loaded:", "torch" in sys.modules)
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = make_tiny_llama(tmp_path_factory.mktemp("repository"), shards=2)
    (folder / "pytorch_model.bin").write_bytes(b"the same weights again")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "config.json").write_text("{}")
    (folder / "consolidated.safetensors").write_bytes(b"the same weights again")
    (folder / "README.md").write_text("# Tiny")
    return folder


def resolve(stub, home, *names):
    environment = {**os.environ, **stub.environment(home)}
    child = subprocess.run(
        [sys.executable, "-c", PROGRAM, *names], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    *answers, torch_loaded = child.stdout.splitlines()
    assert torch_loaded == "torch loaded: False"
    return answers


def test_a_repository_is_fetched_once_and_only_what_a_model_needs(repository, tmp_path):
    with hub_stub(repository, "acme/tiny") as stub:
        (answer,) = resolve(stub, tmp_path, "acme/tiny")
        folder = Path(answer.removeprefix("found "))
        offered = {path.name for path in repository.iterdir()}
        assert stub.fetched_files() == offered - {"pytorch_model.bin", "consolidated.safetensors", "onnx", "README.md"}
        for name in stub.fetched_files():
            assert (folder / name).read_bytes() == (repository / name).read_bytes()
        stub.requests.clear()
        assert resolve(stub, tmp_path, "acme/tiny") == [answer]
        assert stub.requests == []


def test_a_download_that_lost_a_shard_is_completed(repository, tmp_path):
    with hub_stub(repository, "acme/tiny") as stub:
        (answer,) = resolve(stub, tmp_path, "acme/tiny")
        shard = Path(answer.removeprefix("found ")) / "model-00002-of-00002.safetensors"
        shard.resolve().unlink()
        shard.unlink()
        assert resolve(stub, tmp_path, "acme/tiny") == [answer]
        assert shard.is_file()


def test_a_missing_repository_or_tokenizer_is_reported_in_one_line(repository, tmp_path):
    shutil.copytree(repository, tmp_path / "bare")
    (tmp_path / "bare" / "tokenizer.json").unlink()
    with hub_stub(tmp_path / "bare", "acme/bare") as stub:
        missing, bare = resolve(stub, tmp_path, "acme/nothing", "acme/bare")
    assert missing.startswith("ModelNotFound 'acme/nothing' is no folder here and cannot be fetched from the hub: ")
    assert bare.startswith("ModelLoadError")
    assert "tokenizer.json is missing" in bare


def test_without_a_hub_the_answer_comes_at_once(repository, tmp_path):
    with hub_stub(repository, "acme/tiny") as stub:
        pass  # the port is closed again
    (answer,) = resolve(stub, tmp_path, "acme/tiny")
    assert answer.startswith("ModelNotFound 'acme/tiny' is no folder here")
