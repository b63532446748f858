"""Counters, gauges and histograms of a router, and their rendering together with those of other routers.

Counting costs a few additions on the event loop's thread; Prometheus families are built on each scrape.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest

from rayinfer.metrics.adapter_counts import counts_of_adapter
from rayinfer.metrics.batch_counts import BatchCounts
from rayinfer.metrics.families import Families, MetricsSnapshot
from rayinfer.metrics.prediction_cache_counts import PredictionCacheCounts
from rayinfer.metrics.request_timer import ModelCounts, RequestTimer
from rayinfer.metrics.tenant_counts import counts_of_tenant
from rayinfer.outputs import EngineStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ServiceMetrics:
    """Metrics of one router, or of a service without any; all methods but `render` run on the event loop's thread."""

    def __init__(self, router: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._snapshot = MetricsSnapshot(router)

    def request_started(
        self, model: str, num_prompt_tokens: int, tenant: str = "", adapter: str | None = None
    ) -> RequestTimer:
        """Start the timer of a choice; of n choices that share a prompt only one counts its tokens."""
        of_tenant = counts_of_tenant(self._snapshot.tenants, tenant)
        of_adapter = None if adapter is None else counts_of_adapter(self._snapshot.adapters, model, adapter)
        return RequestTimer(self._counts(model), of_tenant, num_prompt_tokens, self._clock, of_adapter)

    def request_params(self, model: str, *, n: int, max_tokens: int | None) -> None:
        """Record the settings of a request."""
        counts = self._counts(model)
        counts.params_n.observe(n)
        if max_tokens is not None:
            counts.params_max_tokens.observe(max_tokens)

    def request_ended(self, model: str, num_tokens: Iterable[int]) -> None:
        """Record the end of a request, all of its choices, given the number of tokens of each."""
        self._counts(model).longest_generation_tokens.observe(max(num_tokens, default=0))

    def request_refused(self, reason: str) -> None:
        """Count a request that was rejected before it could generate; there are few reasons."""
        refused = self._snapshot.refused
        refused[reason] = refused.get(reason, 0) + 1

    def request_rejected(self, model: str, reason: str) -> None:
        """Count a request that a model's queue did not admit."""
        rejected = self._counts(model).rejected
        rejected[reason] = rejected.get(reason, 0) + 1

    def stream_migrated(self, model: str) -> None:
        """Count a stream that migrates, as its engine was lost or drained."""
        self._counts(model).migrations += 1

    def stream_handed_over(self, model: str) -> None:
        """Count a stream that a decode engine continues after a prefill engine computed its prompt."""
        self._counts(model).handovers += 1

    def set_role_advice(self, model: str, num_prefill: int) -> None:
        """Set how many of a model's engines should be prefill engines."""
        self._counts(model).advised_prefill_engines = num_prefill

    def engine_lost(self, model: str) -> None:
        """Count an engine that ended without being drained."""
        self._counts(model).engines_lost += 1

    def set_num_queued(self, model: str, num_queued: int) -> None:
        """Set the number of requests in the dispatch queue."""
        self._counts(model).num_queued = num_queued

    def queued_by(self, model: str) -> dict[tuple[str, int], int]:
        """Return a model's queued requests by tenant and priority, which the queue itself counts there."""
        return self._counts(model).queued_by

    def prediction_cache_counts(self) -> PredictionCacheCounts:
        """Return the counts of the cache of predictions; services without one have no such metrics."""
        if (counts := self._snapshot.prediction_cache) is None:
            counts = self._snapshot.prediction_cache = PredictionCacheCounts()
        return counts

    def batch_counts(self) -> BatchCounts:
        """Return the counts of batches; services without them have no such metrics."""
        if (counts := self._snapshot.batches) is None:
            counts = self._snapshot.batches = BatchCounts()
        return counts

    def set_key_file_valid(self, is_valid: bool) -> None:
        """Set whether the key file can be read; services without keys have no such metric."""
        self._snapshot.is_key_file_valid = is_valid

    def set_engine_config(self, model: str, engine: str, config: Mapping[str, str]) -> None:
        """Set what `vllm:cache_config_info` has of an engine."""
        self._snapshot.engine_configs[model, engine] = dict(config)

    def set_engine_stats(self, model: str, engine: str, stats: EngineStats) -> None:
        """Update an engine's stats; its totals restart from 0 when the engine is rebuilt."""
        self._counts(model)  # its families are there before its first request
        self._snapshot.engines[model, engine] = stats

    def set_canary_share(self, model: str, canary: str, share: float) -> None:
        """Set the share of a model's requests that a canary answers; 0 once it was rolled back or ended."""
        self._snapshot.canary_shares[model, canary] = share

    def drop_engine(self, model: str, engine: str) -> None:
        """Remove the metrics of an engine that is gone."""
        self._snapshot.engines.pop((model, engine), None)
        self._snapshot.engine_configs.pop((model, engine), None)

    def snapshot(self) -> MetricsSnapshot:
        """Return the live state, which another process may get a copy of."""
        return self._snapshot

    def render(self, others: Sequence[MetricsSnapshot] = ()) -> bytes:
        """Render these metrics, and those of other routers, as Prometheus text: some 4 ms per model and router."""
        registry = CollectorRegistry()
        registry.register(Families((self._snapshot, *others)))
        return generate_latest(registry)

    def _counts(self, model: str) -> ModelCounts:
        if (counts := self._snapshot.models.get(model)) is None:
            counts = self._snapshot.models[model] = ModelCounts()
        return counts
