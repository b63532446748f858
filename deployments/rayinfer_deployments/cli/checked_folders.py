"""Cache of model folder checks: a valid folder is not checked again until a file changes."""

from importlib.metadata import version as installed_version
from pathlib import Path

import xxhash

from rayinfer.config import cache_folder
from rayinfer.models.checkpoints.model_folder import check_model_folder, is_optimized, weight_files


def check_folder(folder: Path) -> None:
    """Raise ModelLoadError, naming file or tensor, for a model folder that no engine or router could load.

    The check itself takes seconds, most of them for the import of torch.
    """
    check_model_folder(folder)
    mark = cache_folder() / "checked" / _identity(folder)
    if mark.is_file():
        return
    _check(folder)
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()


def _check(folder: Path) -> None:
    from rayinfer.models.checkpoints.safetensors_header import read_safetensors_header
    from rayinfer.models.loader import check_checkpoint
    from rayinfer.models.model_config import read_model_config
    from rayinfer.models.predictor_kind import predictor_kind
    from rayinfer.tokenization.chat_template import ChatTemplate
    from rayinfer.tokenization.tokenizer import Tokenizer

    kind = predictor_kind(folder)
    if kind is None:
        read_model_config(folder)
    if kind != "tensors" and not is_optimized(folder):
        for file in weight_files(folder):
            read_safetensors_header(file)
    if kind not in ("image", "tensors"):
        Tokenizer.from_folder(folder)
    if kind is not None:
        return
    ChatTemplate.from_folder(folder)
    check_checkpoint(folder)


def _identity(folder: Path) -> str:
    """Return a key of the folder's state, for this version of rayinfer."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    states = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return xxhash.xxh3_128_hexdigest(repr((installed_version("rayinfer"), states)).encode())
