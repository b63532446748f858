"""Errors of a service, rebuilt from its responses as the classes that it raised."""

import json
from collections.abc import Mapping
from typing import Any

from rayinfer.errors import (
    AuthenticationFailed,
    EngineDead,
    HeadersTooLarge,
    InvalidParameter,
    NotReady,
    NotSupported,
    PermissionDenied,
    PredictionFailed,
    PromptTooLong,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    RayinferError,
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

MAX_MESSAGE_CHARS = 1000
# By status, where a code has several classes, and by code alone.
_CLASSES: Mapping[tuple[int | None, str], type[RayinferError]] = {
    (503, "queue_full"): StartingQueueFull,
    (None, "queue_full"): QueueFull,
    (None, "context_length_exceeded"): PromptTooLong,
    (None, "prediction_failed"): PredictionFailed,
    (None, "model_not_found"): UnknownModel,
    (None, "trace_not_found"): TraceNotFound,
    (None, "invalid_api_key"): AuthenticationFailed,
    (None, "missing_api_key"): AuthenticationFailed,
    (None, "permission_denied"): PermissionDenied,
    (None, "rate_limit_exceeded"): RateLimited,
    (None, "insufficient_quota"): QuotaExceeded,
    (None, "task_not_served"): TaskNotServed,
    (None, "not_supported"): NotSupported,
    (None, "request_too_large"): RequestTooLarge,
    (None, "request_too_slow"): RequestTooSlow,
    (None, "headers_too_large"): HeadersTooLarge,
    (None, "not_ready"): NotReady,
    (None, "engine_dead"): EngineDead,
    (None, "wrong_engine_state"): WrongEngineState,
    (None, "timeout"): RequestTimedOut,
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
    error_class = _CLASSES.get((status, code or "")) or _CLASSES.get((None, code or "")) or _STATUSES.get(status)
    if error_class is None and status < 500:
        error_class = InvalidParameter if param else RequestError
    if error_class is None:
        error_class = Unavailable if code == "unavailable" else RequestFailed
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
