"""From JSON to a checked request: strict types, and messages that name the field and nothing inside."""

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rayinfer.errors import InvalidParameter, shown

MAX_FINDINGS = 10

Schema = TypeVar("Schema", bound=BaseModel)


def check_schema(schema: type[Schema], body: dict[str, Any]) -> Schema:
    """Check a body against a schema; raises InvalidParameter that names the fields at fault."""
    try:
        return schema.model_validate(body)
    except ValidationError as error:
        findings = error.errors(include_url=False, include_context=False)[:MAX_FINDINGS]
        paths = [_field_path(finding["loc"], body, is_missing=finding["type"] == "missing") for finding in findings]
        message = "; ".join(f"{path}: {_error_message(finding)}" for path, finding in zip(paths, findings, strict=True))
        raise InvalidParameter(message, paths[0]) from None


def _error_message(finding: ErrorDetails) -> str:
    """Describe what is wrong with a value, and its kind; texts may be secrets and are not repeated."""
    if finding["type"] in ("missing", "too_long"):  # whose messages are complete
        return finding["msg"]
    is_no_object = finding["type"] in ("dict_type", "model_type")  # reported in Python's terms
    expected = "Input should be an object" if is_no_object else finding["msg"]
    return f"{expected}, got {_kind(finding['input'])}"


def _kind(value: object) -> str:
    if isinstance(value, str):
        return "a string"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return json.dumps(value) if value is None or isinstance(value, bool) else shown(value)


def _field_path(location: tuple[int | str, ...], body: Any, *, is_missing: bool) -> str:
    """Write a place as `messages.0.role`, without the names that pydantic gives to a union's members."""
    path: list[str] = []
    here = body
    for part in location:
        if isinstance(here, dict) and isinstance(part, str) and (part in here or is_missing):
            path.append(part)
            here = here.get(part)
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            path.append(str(part))
            here = here[part]
    return ".".join(path)
