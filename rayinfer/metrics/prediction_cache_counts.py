"""Counters of the cache of predictions."""

from dataclasses import dataclass, field
from typing import Literal

HitSource = Literal["memory", "in_flight", "redis"]
BreakerState = Literal["closed", "half_open", "open"]
BREAKER_STATES: tuple[BreakerState, ...] = ("closed", "half_open", "open")


@dataclass(slots=True)
class ModelCacheCounts:
    """Look-ups of one model's items."""

    hits: dict[HitSource, int] = field(default_factory=lambda: {"memory": 0, "in_flight": 0, "redis": 0})
    misses: int = 0
    saved_s: float = 0.0  # that the answers of hits took when they were computed


@dataclass(slots=True)
class PredictionCacheCounts:
    """The cache of one router."""

    models: dict[str, ModelCacheCounts] = field(default_factory=dict)
    memory_bytes: int = 0
    num_entries: int = 0
    num_evicted: int = 0
    breaker_state: BreakerState | None = None  # None without Redis
    redis_errors: dict[str, int] = field(default_factory=dict)  # by kind: failed, invalid, refused, dropped

    def of(self, model: str) -> ModelCacheCounts:
        """Return the counts of a model."""
        return self.models.setdefault(model, ModelCacheCounts())

    def count_redis_error(self, kind: str, count: int = 1) -> None:
        """Count something that Redis or its values did wrong."""
        if count:
            self.redis_errors[kind] = self.redis_errors.get(kind, 0) + count
