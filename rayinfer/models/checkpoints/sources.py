"""Model sources: every kind of name resolves to a folder in one format (no torch here)."""

import importlib
from pathlib import Path

import xxhash

from rayinfer.config import cache_folder
from rayinfer.entry_points import MODELS, entry_point_names
from rayinfer.errors import ModelLoadError, ModelNotFound
from rayinfer.models.checkpoints.embedded_download import fetch_embedded_model, fetch_embedded_predictor
from rayinfer.models.checkpoints.embedded_models import EMBEDDED_MODELS, EMBEDDED_PREDICTORS
from rayinfer.models.checkpoints.hub import fetch_repository, is_repo_id, local_snapshot
from rayinfer.models.checkpoints.model_cache import CONVERSION_VERSION, build_once, is_model_folder
from rayinfer.models.checkpoints.model_folder import check_model_folder, write_registered_folder

GGUF_SUFFIX = ".gguf"


def resolve_model(name: str, *, cache: Path | None = None, progress: bool = True) -> Path:
    """Return the absolute path of a folder that holds the model `name` in the one format that everything reads.

    It has config.json and safetensors and, if it reads texts, tokenizer.json and tokenizer_config.json. `name` is an
    embedded name, a folder, a GGUF file, a predictor that a package registers, or a hub repository. What has to be
    converted is kept in `cache`.
    """
    cache = cache or cache_folder() / "models"
    if name in EMBEDDED_MODELS:
        return _resolve_embedded(name, cache, progress=progress)
    if name in EMBEDDED_PREDICTORS:
        return _resolve_predictor(name, cache, progress=progress)
    path = Path(name).expanduser().absolute()
    if name and path.is_dir():
        check_model_folder(path)
        return path
    if path.is_file():
        return _resolve_file(path, cache, progress=progress)
    if name in entry_point_names(MODELS):
        return _registered_folder(name, cache)
    if not _looks_like_a_path(name) and is_repo_id(name):
        folder = fetch_repository(name, progress=progress)
        check_model_folder(folder)
        return folder
    raise ModelNotFound(
        f"there is no model {name!r}: expected a folder, a {GGUF_SUFFIX} file, a hub repository (organization/name) "
        f"or one of the embedded models: {', '.join(sorted({*EMBEDDED_MODELS, *EMBEDDED_PREDICTORS}))}"
    )


def find_local_model(name: str, *, cache: Path | None = None) -> Path | None:
    """Return what `resolve_model` would without a download; None where it would download, or finds nothing."""
    cache = cache or cache_folder() / "models"
    if name in EMBEDDED_MODELS or name in EMBEDDED_PREDICTORS:
        folder = _embedded_folder(name, cache)
        return folder if is_model_folder(folder) else None
    path = Path(name).expanduser()
    if path.is_dir() or path.is_file() or name in entry_point_names(MODELS):
        return resolve_model(name, cache=cache, progress=False)
    return local_snapshot(name) if not _looks_like_a_path(name) and is_repo_id(name) else None


def _embedded_folder(name: str, cache: Path) -> Path:
    digest = EMBEDDED_MODELS[name].gguf_sha256 if name in EMBEDDED_MODELS else EMBEDDED_PREDICTORS[name].wheel_sha256
    return cache / "embedded" / f"{name}-{digest[:8]}-{CONVERSION_VERSION}"


def _registered_folder(name: str, cache: Path) -> Path:
    """Make a folder for a predictor that a package registers: its code has the rest."""
    folder = cache / "registered" / xxhash.xxh3_64_hexdigest(name.encode())
    return build_once(folder, lambda out: write_registered_folder(name, out))


def _resolve_embedded(name: str, cache: Path, *, progress: bool) -> Path:
    model = EMBEDDED_MODELS[name]
    return build_once(
        _embedded_folder(name, cache), lambda out: fetch_embedded_model(name, model, out, progress=progress)
    )


def _resolve_predictor(name: str, cache: Path, *, progress: bool) -> Path:
    model = EMBEDDED_PREDICTORS[name]
    return build_once(
        _embedded_folder(name, cache), lambda out: fetch_embedded_predictor(name, model, out, progress=progress)
    )


def _resolve_file(file: Path, cache: Path, *, progress: bool) -> Path:
    if file.suffix != GGUF_SUFFIX:
        raise ModelLoadError(f"{file} is neither a folder nor a {GGUF_SUFFIX} file")
    status = file.stat()
    identity = f"{file.resolve()}:{status.st_size}:{status.st_mtime_ns}:{CONVERSION_VERSION}"
    folder = cache / "gguf" / f"{file.stem}-{xxhash.xxh3_64_hexdigest(identity.encode())}"

    def convert(out: Path) -> None:
        # By name: it brings numpy along, which is not needed where the model is there already.
        importlib.import_module("rayinfer.models.gguf.conversion").convert_gguf(file, out, progress=progress)

    return build_once(folder, convert)


def _looks_like_a_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.endswith(GGUF_SUFFIX)
