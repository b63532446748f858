"""Messages for settings that are unknown or wrong."""

import difflib
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rayinfer.errors import shown


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
