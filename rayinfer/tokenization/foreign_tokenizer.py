"""Tokenizers that other packages read, as entry points of the group `rayinfer.tokenizers` (no tokenizers library here).

The name of an entry point is the `tokenizer_class` of a model's tokenizer_config.json; it is a function from the
model's folder to a `Tokenizer`.
"""

import json
from pathlib import Path
from typing import Any

from rayinfer.entry_points import TOKENIZERS, call_entry_point, entry_point_names, refuse_taken_names

OWN_CLASSES = ("MarianTokenizer",)  # whose files are read here
OWN_FILES = ("tokenizer.json", "source.spm")


def foreign_tokenizer_class(folder: Path) -> str | None:
    """Return the `tokenizer_class` of a folder that another package reads; None where rayinfer does, or no package."""
    if any((folder / name).is_file() for name in OWN_FILES):
        return None
    name = _tokenizer_class(folder / "tokenizer_config.json")
    if name is None or name not in entry_point_names(TOKENIZERS):
        return None
    refuse_taken_names(TOKENIZERS, OWN_CLASSES)
    return None if name in OWN_CLASSES else name


def read_foreign_tokenizer(folder: Path, name: str) -> Any:
    """Have the package read the folder; raises ModelLoadError, which names the package, when it fails to."""
    return call_entry_point(TOKENIZERS, name, folder)


def _tokenizer_class(file: Path) -> str | None:
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # others report it
        return None
    name = settings.get("tokenizer_class") if isinstance(settings, dict) else None
    return name if isinstance(name, str) else None
