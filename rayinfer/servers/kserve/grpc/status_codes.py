"""The one table from errors to gRPC's statuses."""

from collections.abc import Mapping

import grpc

from rayinfer.errors import NotSupported, TaskNotServed
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


def status_code(error: BaseException) -> grpc.StatusCode:
    """Return the status of an error."""
    if isinstance(error, NotSupported | TaskNotServed):
        return grpc.StatusCode.UNIMPLEMENTED
    return STATUS_CODES.get(public_error(error).status, grpc.StatusCode.INTERNAL)
