"""Usage of keys: sums by day, key and model."""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

HOUR_S = 3600.0


class Usage(NamedTuple):
    """Requests, tokens and time of engines."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompts', found in the prefix cache
    output_tokens: int = 0
    engine_s: float = 0.0

    def plus(self, other: "Usage") -> "Usage":
        """Return the sum."""
        return Usage(
            self.requests + other.requests,
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            self.engine_s + other.engine_s,
        )

    def minus(self, earlier: "Usage") -> "Usage":
        """Return what came since an earlier state."""
        return Usage(
            self.requests - earlier.requests,
            self.prompt_tokens - earlier.prompt_tokens,
            self.cached_tokens - earlier.cached_tokens,
            self.output_tokens - earlier.output_tokens,
            self.engine_s - earlier.engine_s,
        )


class UsageKey(NamedTuple):
    """Day, key and model of some usage."""

    day: str  # UTC, as 2026-11-23
    key_id: str
    model: str


class UsageRow(NamedTuple):
    """Usage with its day, key and model."""

    key: UsageKey
    usage: Usage


def day_of(time_s: float | None = None) -> str:
    """Return the day of a moment, in UTC; of now without one."""
    return time.strftime("%Y-%m-%d", time.gmtime(time_s))


class UsageSums:
    """Usage that is not yet reported, at most one row for each key, model and day."""

    def __init__(self) -> None:
        self._sums: defaultdict[UsageKey, Usage] = defaultdict(Usage)

    def add(self, key: UsageKey, usage: Usage) -> None:
        """Add some usage."""
        self._sums[key] = self._sums[key].plus(usage)

    def take(self) -> list[UsageRow]:
        """Return the rows, and begin anew."""
        rows = [UsageRow(key, usage) for key, usage in self._sums.items()]
        self._sums.clear()
        return rows


def described(rows: Iterable[UsageRow], names: Mapping[str, str], price_per_engine_hour: float) -> list[dict[str, Any]]:
    """Return rows for people and programs, with the names of keys and the cost of the engines' time."""
    return [
        {
            "day": row.key.day,
            "key_id": row.key.key_id,
            "key": names.get(row.key.key_id, ""),
            "model": row.key.model,
            "requests": row.usage.requests,
            "prompt_tokens": row.usage.prompt_tokens,
            "cached_tokens": row.usage.cached_tokens,
            "output_tokens": row.usage.output_tokens,
            "engine_seconds": round(row.usage.engine_s, 3),
            "cost": round(row.usage.engine_s / HOUR_S * price_per_engine_hour, 6),
        }
        for row in rows
    ]


def first_of_days(num_days: int) -> str:
    """Return the first of the last days, today being the last one."""
    return day_of(time.time() - (num_days - 1) * 24 * HOUR_S)
