"""Rows of a batch's input file, and what is wrong with them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

MAX_ERRORS = 20  # that are told to the client
MAX_CUSTOM_ID_CHARS = 512


class InputRow(NamedTuple):
    """A row and the place of its line."""

    line: int
    custom_id: str
    offset: int
    num_bytes: int


class InputError(NamedTuple):
    """An error in a file, in OpenAI's terms."""

    code: str
    message: str
    line: int | None = None  # from 1
    param: str | None = None


class InputFileInvalid(Exception):
    """The file cannot be a batch's input."""

    def __init__(self, errors: list[InputError]) -> None:
        super().__init__(errors[0].message)
        self.errors = errors


def read_rows(path: Path, endpoint: str, max_requests: int) -> Iterator[InputRow]:
    """Yield the rows of a file; raises InputFileInvalid at its end, or where there are too many rows or errors.

    Blank lines count as lines and hold no row.
    """
    errors: list[InputError] = []
    seen: set[bytes] = set()
    num_rows = offset = 0
    with path.open("rb") as file:
        for line, raw in enumerate(file):
            begin, offset = offset, offset + len(raw)
            if not raw.strip():
                continue
            num_rows += 1
            if num_rows > max_requests:
                raise InputFileInvalid(
                    [InputError("max_requests_exceeded", f"The file has more than {max_requests} requests.")]
                )
            found = _check(raw, endpoint, seen)
            if isinstance(found, InputError):
                errors.append(found._replace(line=line + 1))
                if len(errors) >= MAX_ERRORS:
                    break
            elif not errors:
                yield InputRow(line, found, begin, len(raw))
    if not num_rows:
        errors = [InputError("empty_file", "The file has no requests.")]
    if errors:
        raise InputFileInvalid(errors)


def _check(raw: bytes, endpoint: str, seen: set[bytes]) -> str | InputError:
    """Return a line's custom_id, or what is wrong."""
    try:
        row = json.loads(raw)
    except (ValueError, RecursionError):
        return InputError("invalid_json_line", "This line is not valid JSON.")
    if not isinstance(row, dict):
        return InputError("invalid_json_line", "This line is not a JSON object.")
    custom_id = row.get("custom_id")
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_CUSTOM_ID_CHARS:
        return InputError(
            "missing_required_parameter",
            f"custom_id must be a string of 1 to {MAX_CUSTOM_ID_CHARS} characters.",
            param="custom_id",
        )
    if row.get("method", "POST") != "POST":
        return InputError("invalid_method", "method must be POST.", param="method")
    if row.get("url") != endpoint:
        return InputError("mismatched_url", f"url must be the batch's endpoint, {endpoint}.", param="url")
    if (wrong := _check_body(row.get("body"))) is not None:
        return wrong
    name = custom_id.encode(errors="surrogatepass")
    if name in seen:
        return InputError("duplicate_custom_id", "This custom_id is used by an earlier line.", param="custom_id")
    seen.add(name)
    return custom_id


def _check_body(body: Any) -> InputError | None:
    if not isinstance(body, dict):
        return InputError("missing_required_parameter", "body must be a JSON object.", param="body")
    if body.get("stream"):
        return InputError("unsupported_parameter", "Requests of a batch cannot stream.", param="body.stream")
    if body.get("background"):
        message = "Requests of a batch cannot run in the background: the batch does."
        return InputError("unsupported_parameter", message, param="body.background")
    return None


def row_body(line: bytes) -> bytes:
    """Return the request of a line that was checked."""
    return json.dumps(json.loads(line)["body"], ensure_ascii=False, separators=(",", ":")).encode(
        errors="surrogatepass"
    )
