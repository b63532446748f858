"""Names of settings: messages for unknown ones."""

import difflib
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rayinfer.errors import shown


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
