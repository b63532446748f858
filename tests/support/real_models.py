"""Real checkpoints that only tests use, made from package registries once and kept beside the models of users.

A recipe fills an empty folder with a model. `real_model("opus-mt-en-fr")` returns the folder, whole or not at all.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from transformers import MarianMTModel

from rayinfer.config import cache_folder
from rayinfer.models.model_cache import build_once


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


RECIPES: Mapping[str, Callable[[Path], None]] = {"opus-mt-en-fr": _opus_mt_en_fr}
