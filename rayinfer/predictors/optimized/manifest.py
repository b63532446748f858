"""Manifest of an optimized folder: its original, what was verified, and the digest of every file (no torch here)."""

import hashlib
import hmac
import json
import os
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rayinfer.config import cache_folder
from rayinfer.errors import ModelLoadError
from rayinfer.models.checkpoints.model_folder import OPTIMIZED_MANIFEST
from rayinfer.predictors.optimized.forms import ChosenForm, parse_form

SCHEMA_VERSION = 1
SEAL = "seal"
KEY_BYTES = 32
KEY_FILE = "optimize.key"


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """Everything that a reader needs to load an optimized folder, and to judge it."""

    form: str
    kind: str  # encoder, image or tensors
    original: dict[str, Any]  # its name, and the digest of its weights
    options: dict[str, Any]  # of the conversion: dynamic shapes, mode of torch.compile, calibration
    versions: dict[str, str]
    machine: dict[str, str]
    verified: dict[str, Any]  # the data, the figures and the limits
    files: dict[str, str] = field(default_factory=dict)  # SHA-256 of each
    is_sealed: bool = False  # it was written by this user on this machine; no part of the file

    @property
    def chosen(self) -> ChosenForm:
        """The form."""
        return parse_form(self.form)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write it, with the digests of all other files of the folder and the seal of this user."""
    files = {name: file_digest(folder / name) for name in _files_of(folder)}
    content = {"schema_version": SCHEMA_VERSION, **asdict(manifest), "files": files}
    del content["is_sealed"]
    content[SEAL] = _seal(content, _key(create=True))
    (folder / OPTIMIZED_MANIFEST).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """Read it and compare every file with its digest; raises ModelLoadError that names what does not match."""
    file = folder / OPTIMIZED_MANIFEST
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        version, seal = content.pop("schema_version"), content.pop(SEAL)
        if version != SCHEMA_VERSION:
            raise ModelLoadError(f"{file}: schema_version {version!r:.80} is not known, only {SCHEMA_VERSION}")
        sealed = {"schema_version": version, **content}
        manifest = Manifest(**content, is_sealed=hmac.compare_digest(str(seal), _seal(sealed, _key(create=False))))
        _check_types(manifest)
        parse_form(manifest.form)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"{file} is no manifest of an optimized model: {' '.join(str(error).split())}") from None
    _check_files(folder, manifest)
    return manifest


def file_digest(file: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _files_of(folder: Path) -> list[str]:
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in found if name != OPTIMIZED_MANIFEST)


def _check_types(manifest: Manifest) -> None:
    for name in ("original", "options", "versions", "machine", "verified", "files"):
        if not isinstance(getattr(manifest, name), dict):
            raise TypeError(f"{name} must be an object")
    if manifest.kind not in ("encoder", "image", "tensors"):
        raise ValueError(f"kind must be encoder, image or tensors, got {manifest.kind!r:.80}")


def _check_files(folder: Path, manifest: Manifest) -> None:
    found = set(_files_of(folder))
    for name, digest in manifest.files.items():
        if name not in found:
            raise ModelLoadError(f"{folder / name} is missing, though {OPTIMIZED_MANIFEST} names it")
        if file_digest(folder / name) != digest:
            raise ModelLoadError(
                f"{folder / name} is not the file that was verified: its SHA-256 is another than in"
                f" {OPTIMIZED_MANIFEST}; optimize the model again"
            )
    if added := sorted(found - set(manifest.files)):
        raise ModelLoadError(f"{folder / added[0]} was added after the folder was verified: {OPTIMIZED_MANIFEST}"
                             " does not name it")  # fmt: skip


def _seal(content: dict[str, Any], key: bytes) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def _key(*, create: bool) -> bytes:
    """Return this user's key, which marks the folders that are written here; a random one where there is none."""
    file = cache_folder() / KEY_FILE
    if not file.is_file() and create:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}")
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(secrets.token_bytes(KEY_BYTES))
        try:
            os.link(unfinished, file)  # unless another process was faster
        except FileExistsError:
            pass
        finally:
            unfinished.unlink()
    try:
        key = file.read_bytes()
    except OSError:
        key = b""
    return key if len(key) == KEY_BYTES else secrets.token_bytes(KEY_BYTES)
