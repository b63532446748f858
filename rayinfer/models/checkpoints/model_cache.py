"""Folders that are built once for all processes of a user, and are either whole or not there (no torch here)."""

import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from rayinfer.errors import ModelLoadError
from rayinfer.models.checkpoints.model_folder import check_model_folder

CONVERSION_VERSION = "3"  # of what is converted, part of the names of folders: what an older one wrote is made again


def build_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """Return `folder`, a whole model folder; where it is not there yet, `build` fills it under a lock.

    It is built in a hidden folder and renamed at the end, so a killed build leaves nothing that looks like a model.
    """
    if is_model_folder(folder):
        return folder
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            if is_model_folder(folder):  # another process was faster
                return folder
            _remove(unfinished)
            _remove(folder)
            unfinished.mkdir()
            try:
                build(unfinished)
                unfinished.rename(folder)
            finally:
                _remove(unfinished)
    except OSError as error:
        raise ModelLoadError(f"{folder} cannot be written: {error}") from None
    return folder


def is_model_folder(folder: Path) -> bool:
    """Return whether `folder` holds every file of a model."""
    try:
        check_model_folder(folder)
    except ModelLoadError:
        return False
    return True


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
