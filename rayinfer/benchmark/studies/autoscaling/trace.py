"""Request traces of services: arrival times, and lengths of prompts and answers."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rayinfer.errors import ConfigError

# As vidur (0.0.26) has them in its copies of the traces that Azure published in 2023.
COLUMNS = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")


class TracedRequest(NamedTuple):
    """One request of a trace."""

    arrival_s: float  # since the trace began
    prompt_tokens: int
    output_tokens: int


def read_trace(file: Path, *, speed: float = 1.0) -> list[TracedRequest]:
    """Read a CSV file with arrived_at (s), num_prefill_tokens and num_decode_tokens; raises ConfigError for another.

    With a `speed` of 2 the requests come twice as fast.
    """
    try:
        with file.open(newline="") as lines:
            rows = list(csv.DictReader(lines))
        requests = [
            TracedRequest(float(row[COLUMNS[0]]) / speed, int(row[COLUMNS[1]]), max(1, int(row[COLUMNS[2]])))
            for row in rows
        ]
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{file} is no trace with the columns {', '.join(COLUMNS)}: {error}") from None
    if not requests:
        raise ConfigError(f"{file} holds no request")
    return sorted(requests)


def with_pauses(requests: Sequence[TracedRequest], *, every_s: float, pause_s: float) -> list[TracedRequest]:
    """Insert pauses of `pause_s` without arrivals after each `every_s` of a trace."""
    return [
        request._replace(arrival_s=request.arrival_s + pause_s * (request.arrival_s // every_s)) for request in requests
    ]


def arrivals_by_minute(requests: Sequence[TracedRequest]) -> list[int]:
    """Count the requests of each minute."""
    counts = [0] * (int(requests[-1].arrival_s // 60) + 1)
    for request in requests:
        counts[int(request.arrival_s // 60)] += 1
    return counts
