"""The one table from errors to gRPC's statuses."""

from collections.abc import Mapping
from dataclasses import dataclass

import grpc

from rayinfer.errors import NotSupported, TaskNotServed
from rayinfer.servers.access.request_record import CLIENT_LEFT
from rayinfer.servers.error_responses import public_error

# By the status that the same error has over HTTP (ERROR_KINDS).
STATUS_CODES: Mapping[int, grpc.StatusCode] = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    415: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    431: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}

# A client sees its deadline pass before the server does, and cancels: by the network's delay, and as gRPC rounds up
# to three digits.
EARLY_S, EARLY_SHARE = 0.1, 0.02


@dataclass(frozen=True, slots=True)
class CallEnd:
    """Status of a call, and the status of an HTTP request that ends so."""

    http_status: int
    code: grpc.StatusCode


def status_code(error: BaseException) -> grpc.StatusCode:
    """Return the status of an error."""
    if isinstance(error, NotSupported | TaskNotServed):
        return grpc.StatusCode.UNIMPLEMENTED
    return STATUS_CODES.get(public_error(error).status, grpc.StatusCode.INTERNAL)


def end_of(error: BaseException) -> CallEnd:
    """Return how a call ends with an error."""
    return CallEnd(public_error(error).status, status_code(error))


def early_end(deadline_s: float | None, remaining_s: float | None) -> CallEnd:
    """Return how a call ended that was cancelled: by its deadline, or by a client that left."""
    if deadline_s is not None and remaining_s is not None and remaining_s <= EARLY_S + EARLY_SHARE * deadline_s:
        return CallEnd(504, grpc.StatusCode.DEADLINE_EXCEEDED)
    return CallEnd(CLIENT_LEFT, grpc.StatusCode.CANCELLED)
