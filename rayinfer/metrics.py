"""Prometheus metrics of the service, under the names of vLLM's dashboards.

Counting costs a few additions on the event loop's thread; Prometheus families are built on each scrape.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from rayinfer.outputs import EngineStats, FinishReason

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ROUTER = "router"  # the value of the label `engine` for requests that wait in front of all engines

# vLLM's buckets, and below them finer ones: a small model's tokens come faster than 10 ms.
_FIRST_TOKEN_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_INTER_TOKEN_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_MIGRATION_S = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 20.0),
    *(30.0, 60.0, 120.0),
)
_END_TO_END_S = (
    *(0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


class LatencyHistogram:
    """Histogram of durations; several equal observations cost as much as one."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Observe `count` durations of `seconds` each."""
        self._counts[bisect_left(self._bounds, seconds)] += count
        self._sum += seconds * count

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Append this histogram to a family, with cumulative buckets."""
        cumulated, buckets = 0, []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            cumulated += count
            buckets.append(("+Inf" if bound == float("inf") else repr(bound), cumulated))
        family.add_metric(labels, buckets=buckets, sum_value=self._sum)


@dataclass(slots=True)
class _ModelCounts:
    """Everything counted for one model since the service started."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    cache_queries: int = 0
    cache_hits: int = 0
    num_queued: int = 0
    migrations: int = 0
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(get_args(FinishReason), 0))
    first_token: LatencyHistogram = field(default_factory=lambda: LatencyHistogram(_FIRST_TOKEN_S))
    inter_token: LatencyHistogram = field(default_factory=lambda: LatencyHistogram(_INTER_TOKEN_S))
    migration: LatencyHistogram = field(default_factory=lambda: LatencyHistogram(_MIGRATION_S))
    end_to_end: LatencyHistogram = field(default_factory=lambda: LatencyHistogram(_END_TO_END_S))


class RequestTimer:
    """Timer of one stream, from its arrival to its end."""

    __slots__ = ("_clock", "_counts", "_has_moved", "_last_token_s", "_num_prompt_tokens", "_started_s")

    def __init__(self, counts: _ModelCounts, num_prompt_tokens: int, clock: Callable[[], float]) -> None:
        self._counts = counts
        self._num_prompt_tokens = num_prompt_tokens
        self._clock = clock
        self._started_s = clock()
        self._last_token_s: float | None = None
        self._has_moved = False

    def record_engine_change(self) -> None:
        """Record that the next token comes from another engine than the earlier ones, if any."""
        self._has_moved = self._last_token_s is not None

    def tokens(self, count: int) -> None:
        """Record `count` new tokens that arrived together; the prompt counts as computed with the first of them."""
        if count <= 0:
            return
        now_s, counts = self._clock(), self._counts
        counts.generation_tokens += count
        if self._last_token_s is None:
            counts.prompt_tokens += self._num_prompt_tokens
            counts.first_token.observe(now_s - self._started_s)
            if count > 1:
                counts.inter_token.observe(0.0, count - 1)
        else:
            counts.inter_token.observe((now_s - self._last_token_s) / count, count)
            if self._has_moved:
                counts.migration.observe(now_s - self._last_token_s)
                self._has_moved = False
        self._last_token_s = now_s

    def finished(self, reason: FinishReason) -> None:
        """Record the stream's end; call it once."""
        self._counts.finished[reason] += 1
        self._counts.end_to_end.observe(self._clock() - self._started_s)


class ServiceMetrics:
    """Counters, gauges and histograms of a service, collected by a Prometheus registry.

    All methods run on the event loop's thread.
    """

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self._models: dict[str, _ModelCounts] = {}
        self._engines: dict[tuple[str, str], EngineStats] = {}
        self._refused: dict[str, int] = {}
        registry.register(self)

    def request_started(self, model: str, num_prompt_tokens: int) -> RequestTimer:
        """Start the timer of a stream; of n choices that share a prompt only one counts its tokens."""
        return RequestTimer(self._counts(model), num_prompt_tokens, self._clock)

    def request_refused(self, reason: str) -> None:
        """Count a request that was rejected before it could generate; there are few reasons."""
        self._refused[reason] = self._refused.get(reason, 0) + 1

    def stream_migrated(self, model: str) -> None:
        """Count a stream that migrates, as its engine was lost or drained."""
        self._counts(model).migrations += 1

    def set_num_queued(self, model: str, num_queued: int) -> None:
        """Set the number of requests in the dispatch queue."""
        self._counts(model).num_queued = num_queued

    def set_engine_stats(self, model: str, engine: str, stats: EngineStats) -> None:
        """Update an engine's stats; totals restart from 0 when the engine was rebuilt."""
        counts, before = self._counts(model), self._engines.get((model, engine)) or EngineStats()
        counts.preemptions += _growth(before.num_preemptions_total, stats.num_preemptions_total)
        counts.cache_queries += _growth(before.prompt_tokens_total, stats.prompt_tokens_total)
        counts.cache_hits += _growth(before.cached_prompt_tokens_total, stats.cached_prompt_tokens_total)
        self._engines[model, engine] = stats

    def drop_engine(self, model: str, engine: str) -> None:
        """Remove the gauges of an engine that is gone; its counts remain."""
        self._engines.pop((model, engine), None)

    def render(self) -> bytes:
        """Render the registry as Prometheus text."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Return the metrics' names for the registry."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Build the families for one scrape."""
        yield from self._engine_gauges()
        yield from self._model_counters()
        yield from self._model_histograms()
        refused = CounterMetricFamily(
            "rayinfer_requests_refused", "Requests refused before they could generate.", labels=["reason"]
        )
        for reason, count in self._refused.items():
            refused.add_metric([reason], count)
        yield refused

    def _counts(self, model: str) -> _ModelCounts:
        if (counts := self._models.get(model)) is None:
            counts = self._models[model] = _ModelCounts()
        return counts

    def _engine_gauges(self) -> Iterator[Metric]:
        gauges: list[tuple[str, str, Callable[[EngineStats], float]]] = [
            ("vllm:num_requests_running", "Requests that are generating.", lambda stats: stats.num_running),
            ("vllm:num_requests_waiting", "Requests that wait their turn.", lambda stats: stats.num_waiting),
            (
                "vllm:kv_cache_usage_perc",
                "Share of KV blocks with readers, 0 to 1.",
                lambda stats: stats.kv_cache_usage,
            ),
            ("rayinfer_kv_blocks_used", "KV blocks with readers.", lambda stats: stats.kv_blocks_used),
            ("rayinfer_kv_blocks_total", "KV blocks of the pool.", lambda stats: stats.kv_blocks_total),
        ]
        idle = GaugeMetricFamily(
            "rayinfer_pipeline_stage_idle_share",
            "Share of an engine's time with work so far in which a stage of its pipeline waited for others, 0 to 1.",
            labels=["model_name", "engine", "stage"],
        )
        for labels, stats in self._engines.items():
            for stage, share in enumerate(stats.stage_idle_shares):
                idle.add_metric([*labels, str(stage)], share)
        yield idle
        for name, description, value in gauges:
            family = GaugeMetricFamily(name, description, labels=["model_name", "engine"])
            for labels, stats in self._engines.items():
                family.add_metric(labels, value(stats))
            if name == "vllm:num_requests_waiting":
                for model, counts in self._models.items():
                    family.add_metric([model, ROUTER], counts.num_queued)
            yield family

    def _model_counters(self) -> Iterator[Metric]:
        counters: list[tuple[str, str, Callable[[_ModelCounts], int]]] = [
            ("vllm:prompt_tokens", "Prompt tokens of streams that began to answer.", lambda it: it.prompt_tokens),
            ("vllm:generation_tokens", "Tokens sent as answers.", lambda it: it.generation_tokens),
            ("vllm:num_preemptions", "Requests that lost their blocks to others.", lambda it: it.preemptions),
            ("rayinfer_migrations", "Streams that went on with another engine.", lambda it: it.migrations),
            ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", lambda it: it.cache_queries),
            ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", lambda it: it.cache_hits),
            (
                "rayinfer_prefix_cache_query_tokens",
                "Prompt tokens looked up in the prefix cache.",
                lambda it: it.cache_queries,
            ),
            ("rayinfer_prefix_cache_hit_tokens", "Prompt tokens found in the prefix cache.", lambda it: it.cache_hits),
        ]
        for name, description, value in counters:
            family = CounterMetricFamily(name, description, labels=["model_name"])
            for model, counts in self._models.items():
                family.add_metric([model], value(counts))
            yield family
        finished = CounterMetricFamily(
            "vllm:request_success", "Streams by the way they ended.", labels=["model_name", "finished_reason"]
        )
        for model, counts in self._models.items():
            for reason, count in counts.finished.items():
                finished.add_metric([model, reason], count)
        yield finished

    def _model_histograms(self) -> Iterator[Metric]:
        histograms: list[tuple[str, str, Callable[[_ModelCounts], LatencyHistogram]]] = [
            ("vllm:time_to_first_token_seconds", "Arrival to the first token.", lambda it: it.first_token),
            ("vllm:inter_token_latency_seconds", "One token to the next.", lambda it: it.inter_token),
            ("vllm:e2e_request_latency_seconds", "Arrival to the end.", lambda it: it.end_to_end),
            (
                "rayinfer_migration_gap_seconds",
                "Last token before a stream lost its engine to the first one after it.",
                lambda it: it.migration,
            ),
        ]
        for name, description, histogram in histograms:
            family = HistogramMetricFamily(name, description, labels=["model_name"])
            for model, counts in self._models.items():
                histogram(counts).add_to(family, [model])
            yield family


def _growth(before: int, now: int) -> int:
    return now - before if now >= before else now
