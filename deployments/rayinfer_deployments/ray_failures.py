"""What an error that Ray raises was about."""

from ray.exceptions import RayTaskError


def cause_of(error: BaseException) -> BaseException:
    """Tell what was raised in the other process, or what Ray itself says of that process."""
    return error.cause if isinstance(error, RayTaskError) else error


def cause_in_one_line(error: BaseException) -> str:
    """Name an error's cause and quote the last line that it says."""
    cause = cause_of(error)
    lines = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {lines[-1] if lines else ''}"
