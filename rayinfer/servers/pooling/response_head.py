"""Fields of every answer beside its data: its id, its time, its model and its usage."""

import time
from typing import Any


def response_head(kind: str, name: str, model: str) -> dict[str, Any]:
    """Return the fields before the data."""
    return {"id": f"{kind}-{name}", "object": "list", "created": int(time.time()), "model": model}


def usage(num_tokens: int) -> dict[str, Any]:
    """Return the usage of a request without an answer in tokens."""
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens, "completion_tokens": 0}
