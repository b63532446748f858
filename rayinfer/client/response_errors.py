"""Errors of a service, rebuilt from its responses as the classes that it raised."""

import json
from collections.abc import Mapping
from typing import Any

from rayinfer.error_kinds import ERROR_KINDS
from rayinfer.errors import (
    AuthenticationFailed,
    InvalidParameter,
    QueueFull,
    RayinferError,
    RequestError,
    RequestFailed,
    RequestTimedOut,
    Unavailable,
)

MAX_MESSAGE_CHARS = 1000
_CODED = [(cls, kind) for cls, kind in ERROR_KINDS.items() if kind.code and issubclass(cls, RayinferError)]
_BY_STATUS = {(kind.status, kind.code): cls for cls, kind in _CODED}
# By the code alone, as in a stream: of several classes the first.
_BY_CODE: Mapping[str | None, type[RayinferError]] = {
    "missing_api_key": AuthenticationFailed,
    **{kind.code: cls for cls, kind in reversed(_CODED)},
}
_STATUSES: Mapping[int, type[RayinferError]] = {429: QueueFull, 503: Unavailable, 504: RequestTimedOut}


def error_of_response(status: int, body: bytes, retry_after: str | None = None) -> RayinferError:
    """Rebuild the error of a response in OpenAI's form, or in none."""
    try:
        envelope = json.loads(body)["error"]
    except (ValueError, TypeError, KeyError):
        envelope = {}
    return rebuilt_error(envelope if isinstance(envelope, dict) else {}, status, retry_after)


def rebuilt_error(envelope: Mapping[str, Any], status: int = 500, retry_after: str | None = None) -> RayinferError:
    """Rebuild an error from OpenAI's envelope, which in a stream has no status."""
    message = str(envelope.get("message") or f"the service answered with status {status}")[:MAX_MESSAGE_CHARS]
    param, code = _text(envelope.get("param")), _text(envelope.get("code"))
    error_class = _BY_STATUS.get((status, code)) or _BY_CODE.get(code) or _STATUSES.get(status)
    if error_class is None and status < 500:
        error_class = InvalidParameter if param else RequestError
    if error_class is None:
        error_class = RequestFailed
    if issubclass(error_class, RequestError):
        return error_class(message, param, code)
    if issubclass(error_class, Unavailable):
        return error_class(message, _seconds(retry_after))
    return error_class(message)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _seconds(retry_after: str | None) -> float:
    """Read Retry-After in seconds; a date, which services of ours never send, counts as a second."""
    try:
        seconds = float(retry_after or 1.0)
    except ValueError:
        return 1.0
    return seconds if 0 <= seconds < float("inf") else 1.0
