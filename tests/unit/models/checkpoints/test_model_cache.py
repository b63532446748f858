import subprocess
import sys
from pathlib import Path
from threading import Barrier, Thread

import pytest

from rayinfer.errors import ModelLoadError
from rayinfer.models.checkpoints.model_cache import build_once

MODEL_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")


def write_model(folder: Path) -> None:
    for name in MODEL_FILES:
        (folder / name).write_text(str(folder))


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_folder_is_built_once_and_then_found(tmp_path):
    builds = []

    def build(out: Path) -> None:
        builds.append(out)
        write_model(out)

    assert build_once(tmp_path / "cache" / "model", build) == tmp_path / "cache" / "model"
    assert build_once(tmp_path / "cache" / "model", build) == tmp_path / "cache" / "model"
    assert len(builds) == 1
    assert visible(tmp_path / "cache") == ["model"]


def test_concurrent_callers_build_a_folder_once(tmp_path):
    folder, barrier, builds, seen = tmp_path / "model", Barrier(8), [], []

    def build(out: Path) -> None:
        builds.append(out)
        write_model(out)

    def ask() -> None:
        barrier.wait()
        seen.append(visible(build_once(folder, build)))

    threads = [Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    assert seen == [sorted(MODEL_FILES)] * 8


def test_a_failed_build_leaves_nothing(tmp_path):
    def fail(out: Path) -> None:
        write_model(out)
        raise ModelLoadError("the tensor 'x' is missing")

    with pytest.raises(ModelLoadError, match="'x' is missing"):
        build_once(tmp_path / "model", fail)
    assert visible(tmp_path) == []


def test_a_killed_build_leaves_nothing_that_looks_whole_and_the_next_one_succeeds(tmp_path):
    program = """
import os, signal, sys
from pathlib import Path
from rayinfer.models.checkpoints.model_cache import build_once

def build(out):
    for name in sys.argv[2:]:
        (out / name).write_text("half a model")
    os.kill(os.getpid(), signal.SIGKILL)

build_once(Path(sys.argv[1]), build)
"""
    killed = subprocess.run([sys.executable, "-c", program, tmp_path / "model", *MODEL_FILES], check=False)
    assert killed.returncode == -9
    assert not (tmp_path / "model").exists()
    build_once(tmp_path / "model", write_model)
    assert "half a model" not in (tmp_path / "model" / "config.json").read_text()
    assert visible(tmp_path) == ["model"]


def test_a_folder_that_lost_a_file_is_built_again(tmp_path):
    build_once(tmp_path / "model", write_model)
    (tmp_path / "model" / "tokenizer.json").unlink()
    assert visible(build_once(tmp_path / "model", write_model)) == sorted(MODEL_FILES)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.raises(ModelLoadError, match="cache/model cannot be written"):
        build_once(tmp_path / "cache" / "model", write_model)
