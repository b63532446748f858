"""Folders of models from GGUF files whose matrices keep the file's blocks (no torch here)."""

import json
from functools import partial
from pathlib import Path

from rayinfer.errors import ConfigError
from rayinfer.models.checkpoints.embedded_download import fetch_embedded_model
from rayinfer.models.checkpoints.embedded_models import EMBEDDED_MODELS
from rayinfer.models.checkpoints.model_cache import build_once
from rayinfer.models.gguf.conversion import SOURCE_NOTE, convert_gguf

SUFFIX = "-blocks"


def folder_with_blocks(folder: Path) -> Path:
    """Return the folder of the same model with its GGUF file's blocks, which is made beside `folder` the first time.

    Raises ConfigError where `folder` was not converted from a GGUF file, or that file has changed or gone.
    """
    kept = folder.with_name(f"{folder.name}{SUFFIX}")
    if (name := _embedded_name(folder)) is not None:
        model = EMBEDDED_MODELS[name]
        return build_once(kept, partial(fetch_embedded_model, name, model, progress=False, keeps_blocks=True))
    return build_once(kept, partial(convert_gguf, _source_of(folder), keeps_blocks=True))


def _embedded_name(folder: Path) -> str | None:
    names = EMBEDDED_MODELS.items()
    return next((name for name, model in names if folder.name.startswith(f"{name}-{model.gguf_sha256[:8]}-")), None)


def _source_of(folder: Path) -> Path:
    try:
        note = json.loads((folder / SOURCE_NOTE).read_text(encoding="utf-8"))
        file, size, changed_ns = Path(note["file"]), note["size"], note["mtime_ns"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(
            f"load_format 'gguf' is for GGUF files, and {folder} was not converted from one (or by an earlier version:"
            " delete the folder then)"
        ) from None
    try:
        status = file.stat()
    except OSError as error:
        raise ConfigError(f"load_format 'gguf' needs {file}, which cannot be read: {error}") from None
    if (status.st_size, status.st_mtime_ns) != (size, changed_ns):
        raise ConfigError(f"load_format 'gguf': {file} has changed since {folder} was made of it: load it by its name")
    return file
