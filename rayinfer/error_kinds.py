"""The one table from errors to what clients see: servers answer by it, and clients rebuild errors from it."""

from collections.abc import Mapping
from dataclasses import dataclass

from rayinfer.errors import (
    AuthenticationFailed,
    EngineDead,
    GenerationRefused,
    HeadersTooLarge,
    NotReady,
    NotSupported,
    OperationRefused,
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
    ResourceNotFound,
    ShuttingDown,
    StartingQueueFull,
    TaskNotServed,
    TraceNotFound,
    Unavailable,
    UnknownModel,
    UnsupportedContentType,
    WrongEngineState,
)


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
    GenerationRefused: ErrorKind(422, "invalid_request_error", "generation_refused"),
    PredictionFailed: ErrorKind(422, "invalid_request_error", "prediction_failed"),
    AuthenticationFailed: ErrorKind(401, "invalid_request_error", "invalid_api_key"),
    OperationRefused: ErrorKind(409, "conflict_error", "operation_refused"),
    PermissionDenied: ErrorKind(403, "permission_error", "permission_denied"),
    UnknownModel: ErrorKind(404, "invalid_request_error", "model_not_found"),
    TaskNotServed: ErrorKind(404, "invalid_request_error", "task_not_served"),
    NotSupported: ErrorKind(400, "invalid_request_error", "not_supported"),
    ResourceNotFound: ErrorKind(404, "invalid_request_error", "not_found"),
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
    ShuttingDown: ErrorKind(503, "service_unavailable_error", "shutting_down"),
    Unavailable: ErrorKind(503, "service_unavailable_error", "unavailable"),
    WrongEngineState: ErrorKind(409, "conflict_error", "wrong_engine_state"),
    RequestTimedOut: ErrorKind(504, "timeout_error", "timeout"),
    RequestFailed: ErrorKind(500, "server_error", "generation_failed", is_public=False),
    BaseException: ErrorKind(500, "server_error", "internal_error", is_public=False),
}


def error_kind(error: BaseException) -> ErrorKind:
    """Find the nearest class that has a public form."""
    return next(ERROR_KINDS[cls] for cls in type(error).__mro__ if cls in ERROR_KINDS)
