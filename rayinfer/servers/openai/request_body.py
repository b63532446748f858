"""From bytes to a checked request: strict JSON, strict types, and messages that name the field and nothing inside."""

import json
from typing import Any, NoReturn, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rayinfer.errors import InvalidParameter, RequestError, shown
from rayinfer.servers.error_responses import UnsupportedContentType
from rayinfer.servers.openai.unreadable_values import (
    place_of_constant,
    place_of_half_character,
    place_of_long_number,
)

MAX_FINDINGS = 10

Schema = TypeVar("Schema", bound=BaseModel)


class _UnknownConstant(ValueError):
    """What Python calls a number and JSON does not."""


async def read_json_object(request: Request) -> dict[str, Any]:
    """Read the body as one JSON object; raises RequestError when it is anything else."""
    _check_headers(request)
    body = _read_json(await request.body())
    if not isinstance(body, dict):
        raise RequestError("The request's body must be a JSON object.", code="invalid_json")
    return body


def check_schema(schema: type[Schema], body: dict[str, Any]) -> Schema:
    """Check a body against a schema; raises InvalidParameter that names the fields at fault."""
    try:
        return schema.model_validate(body)
    except ValidationError as error:
        findings = error.errors(include_url=False, include_context=False)[:MAX_FINDINGS]
        paths = [_field_path(finding["loc"], body, is_missing=finding["type"] == "missing") for finding in findings]
        told = "; ".join(f"{path}: {_told(finding)}" for path, finding in zip(paths, findings, strict=True))
        raise InvalidParameter(told, paths[0]) from None


def _read_json(raw: bytes) -> Any:
    body = None
    try:
        body = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
        if b"\\u" in raw:
            json.dumps(body, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise _unreadable(
            "cannot be read", "half a surrogate pair is no character", place_of_half_character(raw, body)
        ) from None
    except UnicodeDecodeError:
        raise RequestError("The request's body is not valid UTF-8.", code="invalid_json") from None
    except RecursionError:
        raise _unreadable("cannot be read", "the JSON is nested too deeply") from None
    except json.JSONDecodeError as error:
        reason = f"{error.msg} (line {error.lineno}, column {error.colno})"
        raise _unreadable("is not valid JSON", reason) from None
    except _UnknownConstant as error:
        raise _unreadable("is not valid JSON", str(error), place_of_constant(raw)) from None
    except ValueError:  # an integer of thousands of digits, which Python does not read
        raise _unreadable("cannot be read", "a number is too large", place_of_long_number(raw)) from None
    return body


def _unreadable(what: str, reason: str, place: str | None = None) -> RequestError:
    told = reason if place is None else f"{place}: {reason}"
    return RequestError(f"The request's body {what}: {told}.", place, "invalid_json")


def _told(finding: ErrorDetails) -> str:
    """Say what is wrong with a value, and of what kind it is; texts may be secrets and are not repeated."""
    if finding["type"] in ("missing", "too_long"):  # which say all there is to say
        return finding["msg"]
    is_no_object = finding["type"] in ("dict_type", "model_type")  # told in Python's words
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


def _check_headers(request: Request) -> None:
    content_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise UnsupportedContentType(f"Content-Type must be application/json, got {content_type!r}.")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedContentType(f"Content-Encoding {encoding!r} is not supported; send the body as it is.")


def _refuse_constant(constant: str) -> NoReturn:
    raise _UnknownConstant(f"{constant} is not a number")


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
