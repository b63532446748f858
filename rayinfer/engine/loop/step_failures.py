"""Failures of steps: those that one request may have caused, and those after which an engine cannot be trusted."""

from rayinfer.errors import EngineDead


def may_be_one_requests_fault(error: Exception) -> bool:
    """Return whether a step of fewer requests may succeed."""
    # After a device error or a lack of memory the state cannot be trusted, whichever request caused it.
    return (
        not isinstance(error, MemoryError | EngineDead)
        and "CUDA error" not in str(error)
        and "out of memory" not in str(error)
    )
