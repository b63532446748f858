"""Names of settings: messages for unknown or wrong ones, and names of another project for ours."""

import difflib
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rayinfer.errors import shown

_NANO_VLLM_SETTINGS = {"kvcache_block_size": "block_size", "num_kvcache_blocks": "num_kv_blocks"}
_CHOSEN_BY_ENGINE = -1  # num_kvcache_blocks, by default


def describe_validation_error(error: ValidationError, kind: type[BaseModel] | None = None) -> str:
    """Format pydantic's findings in one line: `field: message, got value; field: ...`.

    With the settings' model, an unknown name is told the nearest known one.
    """
    return "; ".join(_in_words(finding, kind) for finding in error.errors(include_url=False)[:10])


def _in_words(finding: ErrorDetails, kind: type[BaseModel] | None) -> str:
    if kind is not None and finding["type"] == "extra_forbidden":
        return unknown_setting(kind, finding)
    message = finding["msg"].removeprefix("Value error, ")  # pydantic's prefix of what our own checks raise
    if not finding["loc"]:
        return f"settings: {message}"
    name = ".".join(str(part) for part in finding["loc"])
    is_said = finding["type"] == "missing" or isinstance(finding["input"], BaseModel)  # our message names its values
    is_secret = finding["loc"][-1] == "api_keys"  # a file's path; who writes the keys in its place finds none in a log
    got = "" if is_said or is_secret else f", got {shown(finding['input'])}"
    return f"{name}: {message}{got}"


def first_finding(error: ValidationError) -> ErrorDetails:
    """Return the first finding; unknown names come first, as one of them may be a missing one misspelled."""
    findings = error.errors(include_url=False)
    return next((each for each in findings if each["type"] == "extra_forbidden"), findings[0])


def unknown_setting(kind: type[BaseModel], finding: ErrorDetails) -> str:
    """Say that a model of settings has no such one, and which name of it comes nearest."""
    where = ".".join(map(str, finding["loc"]))
    *outer, name = finding["loc"]
    for part in outer:
        field = kind.model_fields.get(str(part))
        kind = next(_models(field.annotation if field else None), kind)
    hint = nearest_name(str(name), kind.model_fields)
    return f"{where}: there is no such setting, got {shown(finding['input'])}{hint}"


def nearest_name(name: str, known: Iterable[str]) -> str:
    """Return a question for the known name that comes nearest; empty where none is near."""
    nearest = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def translate_names(settings: dict[str, Any]) -> dict[str, Any]:
    """Translate nano-vllm's names of our settings; raises ValueError for one that means something else."""
    if "gpu_memory_utilization" in settings:
        raise ValueError(
            "gpu_memory_utilization, a share of all of a GPU's memory, is not supported: set memory_fraction, the"
            " share for KV blocks of what is free once the weights are loaded"
        )
    renamed = dict(settings)
    for other, name in _NANO_VLLM_SETTINGS.items():
        if other not in renamed:
            continue
        if name in renamed:
            raise ValueError(f"{other} and {name} are the same setting: give {name} alone")
        renamed[name] = renamed.pop(other)
        if other == "num_kvcache_blocks" and renamed[name] == _CHOSEN_BY_ENGINE:
            renamed[name] = None
    return renamed
