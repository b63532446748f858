"""Fetches a Hugging Face repository through `huggingface_hub`, with its mirrors, tokens and cache.

It is imported when a repository is asked for: that takes a third of a second, which other models need not wait for.
"""

import importlib
import re
from pathlib import Path
from typing import Any

from rayinfer.errors import ModelLoadError, ModelNotFound
from rayinfer.models.checkpoints.model_folder import check_model_folder

REPO_ID = re.compile(r"[\w.-]+/[\w.-]+")

WANTED_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.spm"]
# Other formats' folders, but not the modules of sentence-transformers, as 1_Pooling; a second copy of the weights.
UNWANTED_FILES = ["[!0-9]*/*", "consolidated*"]


def is_repo_id(name: str) -> bool:
    """Return whether `name` has the form of a repository id, organization/name."""
    return REPO_ID.fullmatch(name) is not None


def fetch_repository(repo_id: str, *, progress: bool) -> Path:
    """Return the local snapshot of a repository; one that is whole already is used without asking the network."""
    if (snapshot := local_snapshot(repo_id)) is not None:
        return snapshot
    try:
        return Path(_download(repo_id, tqdm_class=None if progress else _silent_bar()))
    # Anything may come out: huggingface_hub lets its HTTP library's errors through, and that library changes.
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ModelNotFound(f"{repo_id!r} is no folder here and cannot be fetched from the hub: {reason}") from None


def local_snapshot(repo_id: str) -> Path | None:
    """Return the local snapshot of a repository if it is whole; asks no network."""
    try:
        snapshot = Path(_download(repo_id, local_files_only=True))
        check_model_folder(snapshot)
    except (OSError, ValueError, ModelLoadError):
        return None
    return snapshot


def _silent_bar() -> type:
    bar = importlib.import_module("huggingface_hub.utils").tqdm

    class SilentBar(bar):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **{**settings, "disable": True})

    return SilentBar


def _download(repo_id: str, **settings: Any) -> str:
    hub = importlib.import_module("huggingface_hub")
    folder: str = hub.snapshot_download(
        repo_id, allow_patterns=WANTED_FILES, ignore_patterns=UNWANTED_FILES, **settings
    )
    return folder


def fetch_config(repo_id: str) -> Path:
    """Return a folder with the config.json of a repository, downloading that file alone; raises ModelNotFound."""
    if (snapshot := local_snapshot(repo_id)) is not None:
        return snapshot
    hub = importlib.import_module("huggingface_hub")
    try:
        return Path(hub.hf_hub_download(repo_id, "config.json")).parent
    except Exception as error:  # see fetch_repository
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ModelNotFound(f"the config.json of {repo_id!r} cannot be fetched from the hub: {reason}") from None
