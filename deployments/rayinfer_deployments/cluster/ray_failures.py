"""Causes of errors that Ray raises."""

from ray.exceptions import RayTaskError


def cause_of(error: BaseException) -> BaseException:
    """Return the exception raised in the other process, or Ray's own error about that process."""
    return error.cause if isinstance(error, RayTaskError) else error


def cause_in_one_line(error: BaseException) -> str:
    """Return the type and the last line of an error's cause."""
    cause = cause_of(error)
    lines = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {lines[-1] if lines else ''}"
