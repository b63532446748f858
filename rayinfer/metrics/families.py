"""Prometheus families of the metrics of one or several routers."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from rayinfer.metrics import metric_list
from rayinfer.metrics.adapter_counts import AdapterCounts
from rayinfer.metrics.adapter_families import adapter_request_families, engine_adapter_families
from rayinfer.metrics.batch_counts import BatchCounts
from rayinfer.metrics.batch_families import batch_families
from rayinfer.metrics.definition import MetricDefinition
from rayinfer.metrics.histogram import STEP_TOKENS, Histogram
from rayinfer.metrics.prediction_cache_counts import PredictionCacheCounts
from rayinfer.metrics.prediction_cache_families import prediction_cache_families
from rayinfer.metrics.request_timer import ModelCounts
from rayinfer.metrics.tenant_counts import TenantCounts
from rayinfer.metrics.tenant_families import tenant_families
from rayinfer.outputs import EngineState, EngineStats, ImageEncodingStats

ROUTER = "router"  # the value of the label `engine` for requests that wait in front of all engines

EngineValue = tuple[MetricDefinition, Callable[[EngineStats], float]]
ModelValue = tuple[MetricDefinition, Callable[[ModelCounts], float]]
ModelHistogram = tuple[MetricDefinition, Callable[[ModelCounts], Histogram]]


@dataclass(slots=True)
class MetricsSnapshot:
    """Metrics of one router."""

    router: str  # "" without routers; else a label of what each router counts for itself
    models: dict[str, ModelCounts] = field(default_factory=dict)
    engines: dict[tuple[str, str], EngineStats] = field(default_factory=dict)  # by model and engine
    engine_configs: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)  # by reason
    canary_shares: dict[tuple[str, str], float] = field(default_factory=dict)  # by model and canary
    is_key_file_valid: bool | None = None  # None for a service without keys
    prediction_cache: PredictionCacheCounts | None = None  # None without one
    tenants: dict[str, TenantCounts] = field(default_factory=dict)
    adapters: dict[tuple[str, str], AdapterCounts] = field(default_factory=dict)  # by model and adapter
    batches: BatchCounts | None = None  # None without them


def _looked_up_tokens(stats: EngineStats) -> float:
    """Count prompt tokens where there is a prefix cache: without blocks there is none."""
    return stats.prompt_tokens_total if stats.kv_blocks_total else 0


ENGINE_GAUGES: tuple[EngineValue, ...] = (
    (metric_list.NUM_RUNNING, lambda it: it.num_running),
    (metric_list.KV_CACHE_USAGE, lambda it: it.kv_cache_usage),
    (metric_list.GPU_CACHE_USAGE, lambda it: it.kv_cache_usage),
    (metric_list.KV_BLOCKS_USED, lambda it: it.kv_blocks_used),
    (metric_list.KV_BLOCKS_TOTAL, lambda it: it.kv_blocks_total),
    (metric_list.KV_WINDOW_PAGES_USED, lambda it: it.kv_window_pages_used),
    (metric_list.KV_WINDOW_PAGES_TOTAL, lambda it: it.kv_window_pages_total),
    (metric_list.TGI_BATCH_SIZE, lambda it: it.num_running),
)
IMAGE_VALUES: tuple[tuple[MetricDefinition, Callable[[ImageEncodingStats], float]], ...] = (
    (metric_list.IMAGE_QUERIES, lambda it: it.queries_total),
    (metric_list.IMAGE_CACHE_HITS, lambda it: it.cache_hits_total),
    (metric_list.IMAGE_ENCODINGS, lambda it: it.encodings_total),
    (metric_list.IMAGE_ENCODE_SECONDS, lambda it: it.encode_seconds_total),
    (metric_list.IMAGES_WAITING, lambda it: it.num_waiting),
)
ENGINE_COUNTERS: tuple[EngineValue, ...] = (
    (metric_list.NUM_PREEMPTIONS, lambda it: it.num_preemptions_total),
    (metric_list.PREFIX_CACHE_QUERIES, _looked_up_tokens),
    (metric_list.PREFIX_CACHE_HITS, lambda it: it.cached_prompt_tokens_total),
    (metric_list.SPECULATIVE_DRAFTS, lambda it: it.num_drafts_total),
    (metric_list.SPECULATIVE_DRAFT_TOKENS, lambda it: it.draft_tokens_total),
    (metric_list.SPECULATIVE_ACCEPTED_TOKENS, lambda it: it.accepted_draft_tokens_total),
    (metric_list.STEPS, lambda it: it.num_steps_total),
)
COUNTERS: tuple[ModelValue, ...] = (
    (metric_list.PROMPT_TOKENS, lambda it: it.prompt_tokens),
    (metric_list.PROMPT_TOKENS_CACHED, lambda it: it.cached_prompt_tokens),
    (metric_list.GENERATION_TOKENS, lambda it: it.generation_tokens),
    (metric_list.MIGRATIONS, lambda it: it.migrations),
    (metric_list.HANDOVERS, lambda it: it.handovers),
    (metric_list.ENGINES_LOST, lambda it: it.engines_lost),
    (metric_list.TGI_REQUESTS, lambda it: sum(it.finished.values())),
    (metric_list.TGI_SUCCESSES, lambda it: it.finished["stop"] + it.finished["length"]),
)
HISTOGRAMS: tuple[ModelHistogram, ...] = (
    (metric_list.FIRST_TOKEN, lambda it: it.first_token),
    (metric_list.INTER_TOKEN, lambda it: it.inter_token),
    (metric_list.INTER_TOKEN_EARLIER_NAME, lambda it: it.inter_token),
    (metric_list.TIME_PER_TOKEN, lambda it: it.time_per_token),
    (metric_list.END_TO_END, lambda it: it.end_to_end),
    (metric_list.QUEUE_TIME, lambda it: it.queue),
    (metric_list.PREFILL_TIME, lambda it: it.prefill),
    (metric_list.DECODE_TIME, lambda it: it.decode),
    (metric_list.INFERENCE_TIME, lambda it: it.inference),
    (metric_list.REQUEST_PROMPT_TOKENS, lambda it: it.request_prompt_tokens),
    (metric_list.COMPUTED_PROMPT_TOKENS, lambda it: it.computed_prompt_tokens),
    (metric_list.REQUEST_GENERATION_TOKENS, lambda it: it.request_generation_tokens),
    (metric_list.LONGEST_GENERATION, lambda it: it.longest_generation_tokens),
    (metric_list.PARAMS_MAX_TOKENS, lambda it: it.params_max_tokens),
    (metric_list.PARAMS_N, lambda it: it.params_n),
    (metric_list.MIGRATION_GAP, lambda it: it.migration),
    (metric_list.TGI_REQUEST_TIME, lambda it: it.tgi_request),
    (metric_list.TGI_QUEUE_TIME, lambda it: it.tgi_queue),
    (metric_list.TGI_INFERENCE_TIME, lambda it: it.tgi_inference),
    (metric_list.TGI_TIME_PER_TOKEN, lambda it: it.tgi_time_per_token),
    (metric_list.TGI_GENERATED_TOKENS, lambda it: it.request_generation_tokens),
    (metric_list.TGI_INPUT_LENGTH, lambda it: it.request_prompt_tokens),
    (metric_list.TGI_MAX_NEW_TOKENS, lambda it: it.params_max_tokens),
)
TGI_FAILURES = {"error": "generation", "timeout": "incomplete_generation", "abort": "cancelled"}


class Families(Collector):
    """Collector over the snapshots of routers.

    What a router counts for itself has the label `router`; what engines report is taken from the router that heard
    the latest, so that each sample is there once. Snapshots may change meanwhile: it runs beside the event loop.
    """

    def __init__(self, snapshots: Sequence[MetricsSnapshot]) -> None:
        self._snapshots = snapshots
        self._has_routers = bool(snapshots[0].router)
        self._engines: dict[tuple[str, str], EngineStats] = {}
        self._configs: dict[tuple[str, str], dict[str, str]] = {}
        for snapshot in snapshots:
            self._configs |= snapshot.engine_configs.copy()
            for key, stats in list(snapshot.engines.items()):
                known = self._engines.get(key)
                if known is None or known.num_steps_total <= stats.num_steps_total:
                    self._engines[key] = stats

    def collect(self) -> Iterable[Metric]:
        """Build the families for one scrape."""
        yield from self._engine_families()
        yield self._engine_counts()
        yield from self._waiting()
        yield from self._tgi_queue()
        yield from self._role_advice()
        yield from self._counters()
        yield from self._histograms()
        yield from self._service_families()
        yield from self._canary_shares()
        yield from adapter_request_families([(each.router, each.adapters) for each in self._snapshots])
        yield from tenant_families([(each.router, each.tenants) for each in self._snapshots])
        yield from batch_families([(each.router, each.batches) for each in self._snapshots])
        yield from prediction_cache_families([(each.router, each.prediction_cache) for each in self._snapshots])

    def _engine_families(self) -> Iterator[Metric]:
        for definition, value in ENGINE_GAUGES:
            gauge = definition.gauge(has_routers=self._has_routers)
            for labels, stats in self._engines.items():
                gauge.add_metric(labels, value(stats))
            yield gauge
        for definition, value in ENGINE_COUNTERS:
            counter = definition.counter(has_routers=self._has_routers)
            for labels, stats in self._engines.items():
                counter.add_metric(labels, value(stats))
            yield counter
        yield self._step_tokens()
        yield self._sleep_state()
        yield self._cache_config()
        idle = metric_list.STAGE_IDLE_SHARE.gauge(has_routers=self._has_routers)
        for labels, stats in self._engines.items():
            for stage, share in enumerate(stats.stage_idle_shares):
                idle.add_metric([*labels, str(stage)], share)
        yield idle
        yield from self._kv_store_families()
        yield from self._kv_transfer_families()
        yield from self._image_families()
        yield from engine_adapter_families(self._engines, has_routers=self._has_routers)

    def _kv_store_families(self) -> Iterator[Metric]:
        """Yield what engines with a machine's block store report; none without one."""
        hits = metric_list.KV_STORE_HITS.counter(has_routers=self._has_routers)
        blocks = metric_list.KV_STORE_BLOCKS.counter(has_routers=self._has_routers)
        sizes = metric_list.KV_STORE_BYTES.gauge(has_routers=self._has_routers)
        for labels, stats in self._engines.items():
            if (store := stats.kv_store) is None:
                continue
            hits.add_metric([*labels, "memory"], store.memory_hit_tokens_total)
            hits.add_metric([*labels, "disk"], store.disk_hit_tokens_total)
            sizes.add_metric([*labels, "memory"], store.memory_bytes)
            sizes.add_metric([*labels, "disk"], store.disk_bytes)
            for event in ("stored", "evicted", "dropped", "damaged"):
                blocks.add_metric([*labels, event], getattr(store, f"{event}_blocks_total"))
        yield from (family for family in (hits, blocks, sizes) if family.samples)

    def _kv_transfer_families(self) -> Iterator[Metric]:
        """Yield what engines with transfers of KV blocks report; none without them."""
        blocks = metric_list.KV_TRANSFER_BLOCKS.counter(has_routers=self._has_routers)
        fetches = metric_list.KV_FETCHES.counter(has_routers=self._has_routers)
        seconds = metric_list.KV_FETCH_SECONDS.counter(has_routers=self._has_routers)
        for labels, stats in self._engines.items():
            if (transfer := stats.kv_transfer) is None:
                continue
            for event in ("fetched", "sent", "damaged"):
                blocks.add_metric([*labels, event], getattr(transfer, f"{event}_blocks_total"))
            complete = transfer.fetches_total - transfer.failed_fetches_total
            fetches.add_metric([*labels, "complete"], complete)
            fetches.add_metric([*labels, "failed"], transfer.failed_fetches_total)
            seconds.add_metric(labels, transfer.fetch_seconds_total)
        yield from (family for family in (blocks, fetches, seconds) if family.samples)

    def _image_families(self) -> Iterator[Metric]:
        """Yield what engines report whose models read images; none without them."""
        for definition, value in IMAGE_VALUES:
            make = definition.gauge if definition.kind == "gauge" else definition.counter
            family = make(has_routers=self._has_routers)
            for labels, stats in self._engines.items():
                if stats.images is not None:
                    family.add_metric(labels, value(stats.images))
            if family.samples:
                yield family

    def _step_tokens(self) -> Metric:
        family = metric_list.STEP_TOKENS.histogram(has_routers=self._has_routers)
        for labels, stats in self._engines.items():
            if stats.step_tokens:
                histogram = Histogram(STEP_TOKENS)
                histogram.counts, histogram.total = stats.step_tokens, stats.step_tokens_total
                _add(family, histogram, labels)
        return family

    def _sleep_state(self) -> Metric:
        family = metric_list.SLEEP_STATE.gauge(has_routers=self._has_routers)
        for labels, stats in self._engines.items():
            is_asleep = stats.state is EngineState.ASLEEP
            family.add_metric([*labels, "awake"], float(not is_asleep))
            family.add_metric([*labels, "asleep"], float(is_asleep))
        return family

    def _cache_config(self) -> Metric:
        keys = sorted({key for config in self._configs.values() for key in config})
        family = metric_list.CACHE_CONFIG.gauge(has_routers=self._has_routers, extra=keys)
        for labels, config in self._configs.items():
            family.add_metric([*labels, *(config.get(key, "") for key in keys)], 1)
        return family

    def _engine_counts(self) -> Metric:
        """Count each router's engines by state, with zeros: a model that has lost all of them is still there."""
        family = metric_list.ENGINES.gauge(has_routers=self._has_routers)
        for snapshot in self._snapshots:
            states = Counter((model, stats.state) for (model, _), stats in list(snapshot.engines.items()))
            for model in list(snapshot.models):
                for state in EngineState:
                    family.add_metric([model, state, *_router(snapshot)], states[model, state])
        return family

    def _waiting(self) -> Iterator[Metric]:
        """Yield the requests that wait, in engines and in the queue of each router."""
        waiting = metric_list.NUM_WAITING.gauge(has_routers=self._has_routers)
        by_reason = metric_list.NUM_WAITING_BY_REASON.gauge(has_routers=self._has_routers)
        no_router = [""] * self._has_routers
        for (model, engine), stats in self._engines.items():
            waiting.add_metric([model, engine, *no_router], stats.num_waiting)
            by_reason.add_metric([model, engine, "capacity", *no_router], stats.num_waiting)
        for model, counts, router in self._models():
            waiting.add_metric([model, ROUTER, *router], counts.num_queued)
            by_reason.add_metric([model, ROUTER, "capacity", *router], counts.num_queued)
        yield from (waiting, by_reason)

    def _role_advice(self) -> Iterator[Metric]:
        family = metric_list.ADVISED_PREFILL_ENGINES.gauge(has_routers=self._has_routers)
        for model, counts, router in self._models():
            if counts.advised_prefill_engines is not None:
                family.add_metric([model, *router], counts.advised_prefill_engines)
        if family.samples:
            yield family

    def _tgi_queue(self) -> Iterator[Metric]:
        family = metric_list.TGI_QUEUE_SIZE.gauge(has_routers=self._has_routers)
        for model, counts, router in self._models():
            family.add_metric([model, *router], counts.num_queued)
        yield family

    def _counters(self) -> Iterator[Metric]:
        for definition, value in COUNTERS:
            family = definition.counter(has_routers=self._has_routers)
            for model, counts, router in self._models():
                family.add_metric([model, *router], value(counts))
            yield family
        finished = metric_list.REQUESTS_FINISHED.counter(has_routers=self._has_routers)
        failed = metric_list.TGI_FAILURES.counter(has_routers=self._has_routers)
        rejected = metric_list.ADMISSION_REJECTIONS.counter(has_routers=self._has_routers)
        for model, counts, router in self._models():
            for reason, count in counts.finished.items():
                finished.add_metric([model, reason, *router], count)
                if reason in TGI_FAILURES:
                    failed.add_metric([model, TGI_FAILURES[reason], *router], count)
            for reason, count in list(counts.rejected.items()):
                rejected.add_metric([model, reason, *router], count)
        yield from (finished, failed, rejected)

    def _histograms(self) -> Iterator[Metric]:
        for definition, histogram in HISTOGRAMS:
            family = definition.histogram(has_routers=self._has_routers)
            for model, counts, router in self._models():
                _add(family, histogram(counts), [model, *router])
            yield family

    def _service_families(self) -> Iterator[Metric]:
        refused = metric_list.REQUESTS_REFUSED.counter(has_routers=self._has_routers)
        valid = metric_list.KEY_FILE_VALID.gauge(has_routers=self._has_routers)
        info = metric_list.ROUTER_INFO.gauge(has_routers=self._has_routers)
        for snapshot in self._snapshots:
            for reason, count in list(snapshot.refused.items()):
                refused.add_metric([reason, *_router(snapshot)], count)
            if snapshot.is_key_file_valid is not None:
                valid.add_metric(_router(snapshot), snapshot.is_key_file_valid)
            if snapshot.router:
                info.add_metric(_router(snapshot), 1)
        yield refused
        yield from (family for family in (valid, info) if family.samples)

    def _canary_shares(self) -> Iterator[Metric]:
        shares = metric_list.CANARY_SHARE.gauge(has_routers=self._has_routers)
        for snapshot in self._snapshots:
            for (model, canary), share in list(snapshot.canary_shares.items()):
                shares.add_metric([model, canary, *_router(snapshot)], share)
        if shares.samples:
            yield shares

    def _models(self) -> Iterator[tuple[str, ModelCounts, list[str]]]:
        """Yield each router's counts of each model, with the value of the label `router`."""
        for snapshot in self._snapshots:
            for model, counts in list(snapshot.models.items()):
                yield model, counts, _router(snapshot)


def _router(snapshot: MetricsSnapshot) -> list[str]:
    """Return the value of the label `router`, which a service without routers lacks."""
    return [snapshot.router] if snapshot.router else []


def _add(family: HistogramMetricFamily, histogram: Histogram, labels: Sequence[str]) -> None:
    """Append a histogram to a family, with cumulative buckets."""
    bounds = (*(repr(float(bound)) for bound in histogram.bounds), "+Inf")
    family.add_metric(
        labels, buckets=list(zip(bounds, accumulate(histogram.counts), strict=True)), sum_value=histogram.total
    )
