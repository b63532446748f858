"""From bytes to a checked request: strict JSON, strict types, and messages that name the field and nothing inside."""

import json
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from rayinfer.errors import InvalidParameter, RequestError
from rayinfer.servers.error_responses import UnsupportedContentType

MAX_FINDINGS = 10

Schema = TypeVar("Schema", bound=BaseModel)


class _UnknownConstant(ValueError):
    """What Python calls a number and JSON does not."""


async def read_json_object(request: Request) -> dict[str, Any]:
    """Read the body as one JSON object; raises RequestError when it is anything else."""
    _check_headers(request)
    raw = await request.body()
    try:
        body = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
        if b"\\u" in raw:
            json.dumps(body, ensure_ascii=False).encode("utf-8")  # half a surrogate pair is no character
    except UnicodeError:
        raise RequestError("The request's body is not valid UTF-8.", code="invalid_json") from None
    except RecursionError:
        raise RequestError(
            "The request's body cannot be read: the JSON is nested too deeply.", code="invalid_json"
        ) from None
    except json.JSONDecodeError as error:
        raise RequestError(
            f"The request's body is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno}).",
            code="invalid_json",
        ) from None
    except _UnknownConstant as error:
        field = _field_of_constant(raw)
        told = f"{field}: {error}" if field else str(error)
        raise RequestError(f"The request's body is not valid JSON: {told}.", field, "invalid_json") from None
    except ValueError:  # an integer of thousands of digits, which Python does not read
        raise RequestError("The request's body cannot be read: a number is too large.", code="invalid_json") from None
    if not isinstance(body, dict):
        raise RequestError("The request's body must be a JSON object.", code="invalid_json")
    return body


def check_schema(schema: type[Schema], body: dict[str, Any]) -> Schema:
    """Check a body against a schema; raises InvalidParameter that names the fields at fault."""
    try:
        return schema.model_validate(body)
    except ValidationError as error:
        findings = error.errors(include_url=False, include_input=False, include_context=False)[:MAX_FINDINGS]
        paths = [_field_path(finding["loc"], body) for finding in findings]
        told = "; ".join(f"{path}: {finding['msg']}" for path, finding in zip(paths, findings, strict=True))
        raise InvalidParameter(told, paths[0]) from None


def _check_headers(request: Request) -> None:
    content_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise UnsupportedContentType(f"Content-Type must be application/json, got {content_type!r}.")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedContentType(f"Content-Encoding {encoding!r} is not supported; send the body as it is.")


def _refuse_constant(constant: str) -> NoReturn:
    raise _UnknownConstant(f"{constant} is not a number")


def _field_of_constant(raw: bytes) -> str | None:
    """Read a body that is refused already once more, to find the first field with such a value."""
    fields: list[str] = []

    def note_fields(pairs: list[tuple[str, Any]]) -> None:
        fields.extend(field for field, value in pairs if value is _UnknownConstant)

    with suppress(ValueError, RecursionError):  # behind the constant there may be more that cannot be read
        json.loads(raw.decode("utf-8"), parse_constant=lambda _: _UnknownConstant, object_pairs_hook=note_fields)
    return fields[0] if fields else None


def _field_path(location: tuple[int | str, ...], body: Any) -> str:
    """Write a place as `messages.0.role`, without the names that pydantic gives to a union's members."""
    path: list[str] = []
    here = body
    for part in location:
        if isinstance(here, dict) and isinstance(part, str):
            path.append(part)
            here = here.get(part)
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            path.append(str(part))
            here = here[part]
    return ".".join(path)
