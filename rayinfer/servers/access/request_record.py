"""Record of one HTTP request, for the access log."""

import re
import time
from dataclasses import dataclass
from typing import Any

from rayinfer.access.caller import Caller
from rayinfer.access.generation_usage import GenerationUsage

MAX_PATH_CHARS = 256
# Version, trace, parent and flags; a client could write anything else there.
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
CLIENT_LEFT = 499  # nginx's status for a client that left before it was answered


@dataclass(slots=True)
class RequestRecord:
    """Fields of a request that are logged; never a prompt or an answer."""

    method: str
    path: str
    client: str
    received_s: float  # since 1970
    traceparent: str = ""  # of the caller's trace
    usage: GenerationUsage | None = None
    dispatched_s: float | None = None  # since 1970

    def as_json(self, request_id: str, caller: Caller, status: int) -> dict[str, Any]:
        """Return the fields of a line of the log."""
        now, usage = time.time(), self.usage
        fields: dict[str, Any] = {
            "time": round(now, 6),
            "request_id": request_id,
            "client": self.client,
            "key_id": caller.key_id,
            "tenant": caller.tenant,
            "method": self.method,
            "path": self.path[:MAX_PATH_CHARS],
            "status": status,
            "total_s": self._since_received(now),
        }
        if _TRACEPARENT.fullmatch(self.traceparent):
            fields["traceparent"] = self.traceparent
        if usage is not None:
            fields |= {
                "model": usage.model,
                "prompt_tokens": usage.prompt_tokens,
                "cached_tokens": usage.cached_tokens,
                "output_tokens": usage.output_tokens,
                "queue_s": self._since_received(self.dispatched_s),
                "first_token_s": self._since_received(usage.first_output_s),
            }
        return fields

    def _since_received(self, time_s: float | None) -> float | None:
        return None if time_s is None else round(max(0.0, time_s - self.received_s), 6)
