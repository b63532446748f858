"""Entry points of other packages, looked up when a model is loaded."""

import functools
import logging
import sys
from collections.abc import Collection
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any

from rayinfer.errors import ModelLoadError

MODELS = "rayinfer.models"  # architectures, by the names in config.json
TOKENIZERS = "rayinfer.tokenizers"  # functions that read a folder's tokenizer, by `tokenizer_class`

logger = logging.getLogger(__name__)


def entry_point_names(group: str) -> list[str]:
    """List the names in a group."""
    return sorted({point.name for point in _entry_points(group)})


def refuse_taken_names(group: str, taken: Collection[str]) -> None:
    """Log a warning for each entry point that has a name of rayinfer's own, which goes before it."""
    for point in _entry_points(group):
        if point.name in taken:
            logger.warning("%s is refused: rayinfer has that name itself", _described(point))


def call_entry_point(group: str, name: str, argument: Any) -> Any:
    """Import the object that a package provides under a name, which must be there, and call it.

    Raises ModelLoadError, which names the package, when it fails to, and for a name that is provided twice.
    """
    found = list(_entry_points(group).select(name=name))
    if len(found) > 1:
        raise ModelLoadError(f"the name {name!r} is provided more than once: {'; '.join(map(_described, found))}")
    try:
        return found[0].load()(argument)
    except ModelLoadError:
        raise
    except Exception as error:  # of another project's code, which may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ModelLoadError(f"{_described(found[0])} failed: {reason}") from error


def _entry_points(group: str) -> EntryPoints:
    return _entry_points_on(tuple(sys.path), group)


@functools.lru_cache(maxsize=8)  # looking through some hundred packages takes tens of milliseconds
def _entry_points_on(_: tuple[str, ...], group: str) -> EntryPoints:
    return entry_points(group=group)


def _described(point: EntryPoint) -> str:
    package = "an unknown package" if point.dist is None else f"package {point.dist.name}"
    return f"entry point {point.group}:{point.name} = {point.value} of {package}"
