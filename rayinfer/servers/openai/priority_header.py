"""vLLM's header for the priority of a request, which counts instead of the body's field."""

import re

from fastapi import Request

from rayinfer.errors import InvalidParameter
from rayinfer.servers.openai.schemas import MAX_PRIORITY

PRIORITY_HEADER = "X-Vllm-Priority"
_INTEGER = re.compile(r"[+-]?[0-9]{1,9}")


def header_priority(request: Request) -> int | None:
    """Return the priority in a request's header, None without one; raises InvalidParameter."""
    values = request.headers.getlist(PRIORITY_HEADER)
    if not values:
        return None
    priority = int(values[0]) if len(values) == 1 and _INTEGER.fullmatch(values[0]) else None
    if priority is None or abs(priority) > MAX_PRIORITY:
        raise InvalidParameter(
            f"the header {PRIORITY_HEADER} must be an integer from {-MAX_PRIORITY} to {MAX_PRIORITY}, "
            f"got {', '.join(values)!r:.80}",
            PRIORITY_HEADER,
        )
    return priority
