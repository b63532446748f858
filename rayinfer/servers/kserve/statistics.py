"""Counters of inferences by model, as Triton's statistics extension reports them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class DurationCounter:
    """Number of events, and their time in all."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        """Count an event."""
        self.count += 1
        self.ns += max(0, ns)

    def as_dict(self) -> dict[str, int]:
        """Return the protocol's form."""
        return {"count": self.count, "ns": self.ns}


@dataclass(slots=True)
class ModelStatistics:
    """Counters of one model since this process began to serve it."""

    last_inference: int = 0  # milliseconds since 1970
    inference_count: int = 0  # rows of batches, or prompts
    execution_count: int = 0
    success: DurationCounter = field(default_factory=DurationCounter)
    fail: DurationCounter = field(default_factory=DurationCounter)
    queue: DurationCounter = field(default_factory=DurationCounter)
    compute_input: DurationCounter = field(default_factory=DurationCounter)
    compute_infer: DurationCounter = field(default_factory=DurationCounter)
    compute_output: DurationCounter = field(default_factory=DurationCounter)

    def as_dict(self, name: str, version: str) -> dict[str, Any]:
        """Return the protocol's form; there is no cache of responses."""
        durations = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
        without = DurationCounter().as_dict()
        return {
            "name": name,
            "version": version,
            "last_inference": self.last_inference,
            "inference_count": self.inference_count,
            "execution_count": self.execution_count,
            "inference_stats": {
                **{each: getattr(self, each).as_dict() for each in durations},
                "cache_hit": without,
                "cache_miss": without,
            },
            "response_stats": {},
            "batch_stats": [],
            "memory_usage": [],
        }


class InferStatistics:
    """Counters of all models."""

    def __init__(self) -> None:
        self._by_model: dict[str, ModelStatistics] = {}

    def of(self, model: str) -> ModelStatistics:
        """Return a model's counters."""
        return self._by_model.setdefault(model, ModelStatistics())

    @contextmanager
    def count(self, model: str, num_rows: int, input_ns: int) -> Iterator[None]:
        """Count the inference in the block, as a failure if it raises or is cancelled.

        There is no queue in front of tensor models; that of a language model is part of its `compute_infer`.
        """
        statistics, started_ns = self.of(model), time.monotonic_ns()
        try:
            yield
        except BaseException:
            statistics.fail.add(input_ns + time.monotonic_ns() - started_ns)
            raise
        elapsed_ns = time.monotonic_ns() - started_ns
        statistics.last_inference = int(time.time() * 1000)
        statistics.inference_count += num_rows
        statistics.execution_count += 1
        statistics.success.add(input_ns + elapsed_ns)
        statistics.queue.add(0)
        statistics.compute_input.add(input_ns)
        statistics.compute_infer.add(elapsed_ns)
