"""Reads fields of a checkpoint's config.json one by one; a wrong one raises ValueError or KeyError with its name."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayinfer.errors import ModelLoadError

RawConfig = Mapping[str, Any]


def read_json(file: Path) -> dict[str, Any]:
    """Read a file with a JSON object; raises ModelLoadError that names it."""
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(f"{file}: no such file") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelLoadError(f"{file}: not readable as JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ModelLoadError(f"{file}: not a JSON object")
    return raw


def first_name(raw: RawConfig, *names: str) -> str:
    """Return the first of a field's names that is there and not null; raises KeyError with the first of them."""
    for name in names:
        if raw.get(name) is not None:
            return name
    raise KeyError(names[0])


def count(raw: RawConfig, *names: str, default: int | None = None) -> int:
    """Read a whole number above 0, under the first of the names that is there."""
    if default is not None and all(raw.get(name) is None for name in names):
        return default
    name = first_name(raw, *names)
    value = raw[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number above 0, got {value!r}")
    return value


def number(raw: RawConfig, name: str, *, default: float | None = None) -> float:
    """Read a finite number above 0."""
    if raw.get(name) is None and default is not None:
        return default
    value = raw[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a number above 0, got {value!r}")
    return float(value)


def flag(raw: RawConfig, name: str, *, default: bool = False) -> bool:
    """Read true or false."""
    value = raw.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {value!r}")
    return value
