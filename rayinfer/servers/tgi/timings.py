"""Times and counts of a request as TGI's response headers have them."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

COMPUTE_TYPE = "rayinfer"


@dataclass(slots=True)
class Timings:
    """Clock of one request, from its arrival on."""

    received_s: float  # since 1970, like the others
    prepared_s: float = field(default_factory=time.time)

    def headers(
        self, *, num_input_chars: int, num_prompt_tokens: int, num_new_tokens: int, dispatched_s: float | None
    ) -> Mapping[str, str]:
        """Return the headers of a response that is complete now; times are in milliseconds.

        Without a known time of dispatch, all that follows the validation counts as inference.
        """
        now_s = time.time()
        started_s = self.prepared_s if dispatched_s is None else max(self.prepared_s, dispatched_s)
        total_s, inference_s = now_s - self.received_s, now_s - started_s
        return {
            **stream_headers(num_input_chars),
            "x-compute-time": f"{total_s:.6f}",  # in seconds
            "x-total-time": _milliseconds(total_s),
            "x-validation-time": _milliseconds(self.prepared_s - self.received_s),
            "x-queue-time": _milliseconds(started_s - self.prepared_s),
            "x-inference-time": _milliseconds(inference_s),
            "x-time-per-token": _milliseconds(inference_s / max(1, num_new_tokens)),
            "x-prompt-tokens": str(num_prompt_tokens),
            "x-generated-tokens": str(num_new_tokens),
        }


def stream_headers(num_input_chars: int) -> Mapping[str, str]:
    """Return the headers that are known before the first token."""
    return {"x-compute-type": COMPUTE_TYPE, "x-compute-characters": str(num_input_chars)}


def _milliseconds(duration_s: float) -> str:
    return str(max(0, round(duration_s * 1000)))
