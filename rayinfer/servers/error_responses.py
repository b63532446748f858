"""The one place that turns errors into what a client may see: a status, a protocol's form and no inner details."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from rayinfer.errors import (
    AuthenticationFailed,
    EngineDead,
    HeadersTooLarge,
    NotReady,
    NotSupported,
    PermissionDenied,
    PredictionFailed,
    PromptTooLong,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    RequestError,
    RequestFailed,
    RequestTimedOut,
    RequestTooLarge,
    RequestTooSlow,
    StartingQueueFull,
    TaskNotServed,
    TraceNotFound,
    Unavailable,
    UnknownModel,
    WrongEngineState,
)
from rayinfer.servers.error_formats import ErrorFormat, PublicError, openai_error

MAX_MESSAGE_CHARS = 1000
INTERNAL_MESSAGE = "The service failed to answer this request; see its log."


class UnsupportedContentType(RequestError):
    """A body that does not call itself JSON."""


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """The public form of one class of errors."""

    status: int
    type: str
    code: str | None = None
    is_public: bool = True  # whether the error's own message was written for clients


ERROR_KINDS: Mapping[type[BaseException], ErrorKind] = {
    RequestError: ErrorKind(400, "invalid_request_error"),
    PromptTooLong: ErrorKind(400, "invalid_request_error", "context_length_exceeded"),
    PredictionFailed: ErrorKind(422, "invalid_request_error", "prediction_failed"),
    AuthenticationFailed: ErrorKind(401, "invalid_request_error", "invalid_api_key"),
    PermissionDenied: ErrorKind(403, "permission_error", "permission_denied"),
    UnknownModel: ErrorKind(404, "invalid_request_error", "model_not_found"),
    TaskNotServed: ErrorKind(404, "invalid_request_error", "task_not_served"),
    NotSupported: ErrorKind(400, "invalid_request_error", "not_supported"),
    TraceNotFound: ErrorKind(404, "invalid_request_error", "trace_not_found"),
    UnsupportedContentType: ErrorKind(415, "invalid_request_error", "unsupported_content_type"),
    RequestTooLarge: ErrorKind(413, "invalid_request_error", "request_too_large"),
    RequestTooSlow: ErrorKind(408, "invalid_request_error", "request_too_slow"),
    HeadersTooLarge: ErrorKind(431, "invalid_request_error", "headers_too_large"),
    RateLimited: ErrorKind(429, "rate_limit_error", "rate_limit_exceeded"),
    QuotaExceeded: ErrorKind(429, "rate_limit_error", "insufficient_quota"),
    QueueFull: ErrorKind(429, "rate_limit_error", "queue_full"),
    StartingQueueFull: ErrorKind(503, "service_unavailable_error", "queue_full"),
    NotReady: ErrorKind(503, "service_unavailable_error", "not_ready"),
    EngineDead: ErrorKind(503, "service_unavailable_error", "engine_dead"),
    Unavailable: ErrorKind(503, "service_unavailable_error", "unavailable"),
    WrongEngineState: ErrorKind(409, "conflict_error", "wrong_engine_state"),
    RequestTimedOut: ErrorKind(504, "timeout_error", "timeout"),
    RequestFailed: ErrorKind(500, "server_error", "generation_failed", is_public=False),
    BaseException: ErrorKind(500, "server_error", "internal_error", is_public=False),
}


def error_kind(error: BaseException) -> ErrorKind:
    """Find the nearest class that has a public form."""
    return next(ERROR_KINDS[cls] for cls in type(error).__mro__ if cls in ERROR_KINDS)


def refusal_reason(error: BaseException) -> str:
    """Name the kind of a refusal for the metrics, out of a short list."""
    return error_kind(error).code or "invalid_request"


def public_error(error: BaseException) -> PublicError:
    """Return what a client may see of an error; a long message is cut."""
    kind = error_kind(error)
    message = _cut(str(error) if kind.is_public else INTERNAL_MESSAGE)
    if isinstance(error, RequestError):
        param = None if error.param is None else _cut(error.param)
        return PublicError(kind.status, kind.type, message, param, error.code or kind.code)
    return PublicError(kind.status, kind.type, message, None, kind.code)


def error_body(error: BaseException, form: ErrorFormat = openai_error) -> bytes:
    """Write an error in a protocol's form."""
    return _encode(form(public_error(error))[1])


def error_response(error: BaseException, form: ErrorFormat = openai_error) -> Response:
    """Answer with an error's status and form and, when it is worth trying again, the time to wait."""
    headers = {}
    if (wait := retry_after(error)) is not None:
        headers["Retry-After"] = wait
    if isinstance(error, AuthenticationFailed):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, RequestTooLarge | RequestTooSlow | HeadersTooLarge):
        headers["Connection"] = "close"  # the rest of the request is not worth reading
    status, body = form(public_error(error))
    return json_response(_encode(body), status, headers)


def retry_after(error: BaseException) -> str | None:
    """Return after how many whole seconds to try again; None for an error that stays."""
    return str(max(1, math.ceil(error.retry_after_s))) if isinstance(error, Unavailable) else None


def status_response(
    status: int, message: str, headers: Mapping[str, str] | None = None, form: ErrorFormat = openai_error
) -> Response:
    """Answer with a status that the framework chose, such as 404 or 405."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = form(PublicError(status, kind, _cut(message)))[1]
    return json_response(_encode(body), status, headers)


def json_response(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Answer with JSON that is already encoded."""
    return Response(body, status, dict(headers or {}), "application/json")


def _encode(body: Mapping[str, Any]) -> bytes:
    """Encode an error; what UTF-8 cannot carry is replaced."""
    return json.dumps(body, ensure_ascii=False).encode(errors="replace")


def _cut(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"
