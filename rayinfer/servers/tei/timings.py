"""Times and counts of a request as TEI's response headers have them."""

import time
from dataclasses import dataclass, field

COMPUTE_TYPE = "rayinfer"


@dataclass(slots=True)
class Timings:
    """Clock of one request, from its arrival on."""

    received_s: float  # since 1970, like the others
    prepared_s: float = field(default_factory=time.time)

    def headers(self, *, num_chars: int, num_tokens: int, dispatched_s: float | None) -> dict[str, str]:
        """Return the headers of a response that is complete now, with times in milliseconds."""
        now_s = time.time()
        started_s = self.prepared_s if dispatched_s is None else max(self.prepared_s, dispatched_s)
        total = _milliseconds(now_s - self.received_s)
        return {
            "x-compute-type": COMPUTE_TYPE,
            "x-compute-time": total,
            "x-compute-characters": str(num_chars),
            "x-compute-tokens": str(num_tokens),
            "x-total-time": total,
            "x-tokenization-time": _milliseconds(self.prepared_s - self.received_s),
            "x-queue-time": _milliseconds(started_s - self.prepared_s),
            "x-inference-time": _milliseconds(now_s - started_s),
        }


def _milliseconds(duration_s: float) -> str:
    return str(max(0, round(duration_s * 1000)))
