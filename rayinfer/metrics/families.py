"""Prometheus families of the metrics of one or several routers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from rayinfer.metrics.histogram import STEP_TOKENS, Histogram
from rayinfer.metrics.prediction_cache_counts import PredictionCacheCounts
from rayinfer.metrics.prediction_cache_families import prediction_cache_families
from rayinfer.metrics.request_timer import ModelCounts
from rayinfer.outputs import EngineState, EngineStats

ROUTER = "router"  # the value of the label `engine` for requests that wait in front of all engines

Gauge = tuple[str, str, Callable[[EngineStats], float]]
Counter = tuple[str, str, Callable[[ModelCounts], float]]
HistogramOf = tuple[str, str, Callable[[ModelCounts], Histogram]]


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


def _looked_up_tokens(stats: EngineStats) -> float:
    """Count prompt tokens where there is a prefix cache: without blocks there is none."""
    return stats.prompt_tokens_total if stats.kv_blocks_total else 0


ENGINE_GAUGES: tuple[Gauge, ...] = (
    ("vllm:num_requests_running", "Requests that are generating.", lambda it: it.num_running),
    ("vllm:kv_cache_usage_perc", "Share of KV blocks with readers, 0 to 1.", lambda it: it.kv_cache_usage),
    ("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc under its earlier name.", lambda it: it.kv_cache_usage),
    ("rayinfer_kv_blocks_used", "KV blocks with readers.", lambda it: it.kv_blocks_used),
    ("rayinfer_kv_blocks_total", "KV blocks of the pool.", lambda it: it.kv_blocks_total),
    ("tgi_batch_current_size", "Requests that are generating.", lambda it: it.num_running),
)
ENGINE_COUNTERS: tuple[Gauge, ...] = (
    ("vllm:num_preemptions", "Requests that lost their blocks to others.", lambda it: it.num_preemptions_total),
    ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", _looked_up_tokens),
    ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", lambda it: it.cached_prompt_tokens_total),
    ("rayinfer_steps", "Steps of the engine.", lambda it: it.num_steps_total),
)
COUNTERS: tuple[Counter, ...] = (
    ("vllm:prompt_tokens", "Prompt tokens of streams that began to answer.", lambda it: it.prompt_tokens),
    ("vllm:prompt_tokens_cached", "Those that the prefix cache had.", lambda it: it.cached_prompt_tokens),
    ("vllm:generation_tokens", "Tokens sent as answers.", lambda it: it.generation_tokens),
    ("rayinfer_migrations", "Streams that went on with another engine.", lambda it: it.migrations),
    ("tgi_request_count", "Requests that ended.", lambda it: sum(it.finished.values())),
    ("tgi_request_success", "Requests that ended well.", lambda it: it.finished["stop"] + it.finished["length"]),
)
HISTOGRAMS: tuple[HistogramOf, ...] = (
    ("vllm:time_to_first_token_seconds", "Arrival to the first token.", lambda it: it.first_token),
    ("vllm:inter_token_latency_seconds", "One token to the next.", lambda it: it.inter_token),
    ("vllm:time_per_output_token_seconds", "The same under its earlier name.", lambda it: it.inter_token),
    ("vllm:request_time_per_output_token_seconds", "Mean of each choice.", lambda it: it.time_per_token),
    ("vllm:e2e_request_latency_seconds", "Arrival to the end.", lambda it: it.end_to_end),
    ("vllm:request_queue_time_seconds", "Arrival to an engine's acceptance.", lambda it: it.queue),
    ("vllm:request_prefill_time_seconds", "Acceptance to the first token.", lambda it: it.prefill),
    ("vllm:request_decode_time_seconds", "First token to the last.", lambda it: it.decode),
    ("vllm:request_inference_time_seconds", "Acceptance to the last token.", lambda it: it.inference),
    ("vllm:request_prompt_tokens", "Prompt tokens of a request.", lambda it: it.request_prompt_tokens),
    ("vllm:request_prefill_kv_computed_tokens", "Those not cached.", lambda it: it.computed_prompt_tokens),
    ("vllm:request_generation_tokens", "Tokens of a choice.", lambda it: it.request_generation_tokens),
    ("vllm:request_max_num_generation_tokens", "Of the longest choice.", lambda it: it.longest_generation_tokens),
    ("vllm:request_params_max_tokens", "max_tokens of a request.", lambda it: it.params_max_tokens),
    ("vllm:request_params_n", "n of a request.", lambda it: it.params_n),
    ("rayinfer_migration_gap_seconds", "Last token on a lost engine to the next.", lambda it: it.migration),
    ("tgi_request_duration", "Arrival to the end.", lambda it: it.tgi_request),
    ("tgi_request_queue_duration", "Arrival to an engine's acceptance.", lambda it: it.tgi_queue),
    ("tgi_request_inference_duration", "Acceptance to the last token.", lambda it: it.tgi_inference),
    ("tgi_request_mean_time_per_token_duration", "Mean of each choice.", lambda it: it.tgi_time_per_token),
    ("tgi_request_generated_tokens", "Tokens of a choice.", lambda it: it.request_generation_tokens),
    ("tgi_request_input_length", "Prompt tokens of a request.", lambda it: it.request_prompt_tokens),
    ("tgi_request_max_new_tokens", "max_tokens of a request.", lambda it: it.params_max_tokens),
)
TGI_FAILURES = {"error": "generation", "timeout": "incomplete_generation", "abort": "cancelled"}


class Families(Collector):
    """Collector over the snapshots of routers.

    What a router counts for itself has the label `router`; what engines report is taken from the router that heard
    the latest, so that each sample is there once. Snapshots may change meanwhile: it runs beside the event loop.
    """

    def __init__(self, snapshots: Sequence[MetricsSnapshot]) -> None:
        self._snapshots = snapshots
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
        yield from self._waiting()
        yield from self._tgi_queue()
        yield from self._counters()
        yield from self._histograms()
        yield from self._service_families()
        yield from prediction_cache_families([(each.router, each.prediction_cache) for each in self._snapshots])

    def _engine_families(self) -> Iterator[Metric]:
        for family_type, metrics in ((GaugeMetricFamily, ENGINE_GAUGES), (CounterMetricFamily, ENGINE_COUNTERS)):
            for name, description, value in metrics:
                family = family_type(name, description, labels=["model_name", "engine"])
                for labels, stats in self._engines.items():
                    family.add_metric(labels, value(stats))
                yield family
        yield self._step_tokens()
        yield self._sleep_state()
        yield self._cache_config()
        idle = GaugeMetricFamily(
            "rayinfer_pipeline_stage_idle_share",
            "Share of an engine's time with work so far in which a stage of its pipeline waited for others, 0 to 1.",
            labels=["model_name", "engine", "stage"],
        )
        for labels, stats in self._engines.items():
            for stage, share in enumerate(stats.stage_idle_shares):
                idle.add_metric([*labels, str(stage)], share)
        yield idle

    def _step_tokens(self) -> Metric:
        family = HistogramMetricFamily(
            "vllm:iteration_tokens_total", "Tokens of a step.", labels=["model_name", "engine"]
        )
        for labels, stats in self._engines.items():
            if stats.step_tokens:
                histogram = Histogram(STEP_TOKENS)
                histogram.counts, histogram.total = stats.step_tokens, stats.step_tokens_total
                _add(family, histogram, labels)
        return family

    def _sleep_state(self) -> Metric:
        family = GaugeMetricFamily(
            "vllm:engine_sleep_state",
            "1 in the engine's state, else 0.",
            labels=["model_name", "engine", "sleep_state"],
        )
        for labels, stats in self._engines.items():
            is_asleep = stats.state is EngineState.ASLEEP
            family.add_metric([*labels, "awake"], float(not is_asleep))
            family.add_metric([*labels, "asleep"], float(is_asleep))
        return family

    def _cache_config(self) -> Metric:
        keys = sorted({key for config in self._configs.values() for key in config})
        family = GaugeMetricFamily(
            "vllm:cache_config_info", "Settings of the KV cache; always 1.", labels=["model_name", "engine", *keys]
        )
        for labels, config in self._configs.items():
            family.add_metric([*labels, *(config.get(key, "") for key in keys)], 1)
        return family

    def _waiting(self) -> Iterator[Metric]:
        """Yield the requests that wait, in engines and in the queue of each router."""
        waiting = GaugeMetricFamily("vllm:num_requests_waiting", "Requests that wait.", labels=self._labels("engine"))
        by_reason = GaugeMetricFamily(
            "vllm:num_requests_waiting_by_reason", "The same by cause.", labels=self._labels("engine", "reason")
        )
        no_router = [""] * bool(self._snapshots[0].router)
        for (model, engine), stats in self._engines.items():
            waiting.add_metric([model, engine, *no_router], stats.num_waiting)
            by_reason.add_metric([model, engine, "capacity", *no_router], stats.num_waiting)
        for model, counts, router in self._models():
            waiting.add_metric([model, ROUTER, *router], counts.num_queued)
            by_reason.add_metric([model, ROUTER, "capacity", *router], counts.num_queued)
        yield from (waiting, by_reason)

    def _tgi_queue(self) -> Iterator[Metric]:
        family = GaugeMetricFamily("tgi_queue_size", "Requests that wait for an engine.", labels=self._labels())
        for model, counts, router in self._models():
            family.add_metric([model, *router], counts.num_queued)
        yield family

    def _counters(self) -> Iterator[Metric]:
        for name, description, value in COUNTERS:
            family = CounterMetricFamily(name, description, labels=self._labels())
            for model, counts, router in self._models():
                family.add_metric([model, *router], value(counts))
            yield family
        finished = CounterMetricFamily(
            "vllm:request_success", "Streams by the way they ended.", labels=self._labels("finished_reason")
        )
        failed = CounterMetricFamily("tgi_request_failure", "Requests that failed.", labels=self._labels("err"))
        rejected = CounterMetricFamily(
            "vllm:admission_rejections", "Requests that a model's queue rejected.", labels=self._labels("reason")
        )
        for model, counts, router in self._models():
            for reason, count in counts.finished.items():
                finished.add_metric([model, reason, *router], count)
                if reason in TGI_FAILURES:
                    failed.add_metric([model, TGI_FAILURES[reason], *router], count)
            for reason, count in list(counts.rejected.items()):
                rejected.add_metric([model, reason, *router], count)
        yield from (finished, failed, rejected)

    def _histograms(self) -> Iterator[Metric]:
        for name, description, histogram in HISTOGRAMS:
            family = HistogramMetricFamily(name, description, labels=self._labels())
            for model, counts, router in self._models():
                _add(family, histogram(counts), [model, *router])
            yield family

    def _service_families(self) -> Iterator[Metric]:
        routers = [snapshot.router for snapshot in self._snapshots]
        refused = CounterMetricFamily(
            "rayinfer_requests_refused",
            "Requests refused before they could generate.",
            labels=["reason", *(["router"] if any(routers) else [])],
        )
        for snapshot in self._snapshots:
            for reason, count in list(snapshot.refused.items()):
                refused.add_metric([reason, *([snapshot.router] if any(routers) else [])], count)
        yield refused
        valid = GaugeMetricFamily(
            "rayinfer_key_file_valid",
            "Whether the API keys' file can be read; while it is 0 the last keys apply.",
            labels=["router"] if any(routers) else [],
        )
        for snapshot in self._snapshots:
            if snapshot.is_key_file_valid is not None:
                valid.add_metric([snapshot.router] if any(routers) else [], snapshot.is_key_file_valid)
        if valid.samples:
            yield valid
        shares = GaugeMetricFamily(
            "rayinfer_canary_share",
            "Share of a model's requests that its canary answers; 0 once it was rolled back or ended.",
            labels=self._labels("canary"),
        )
        for snapshot in self._snapshots:
            for (model, canary), share in list(snapshot.canary_shares.items()):
                shares.add_metric([model, canary, *([snapshot.router] if any(routers) else [])], share)
        if shares.samples:
            yield shares
        if any(routers):
            info = GaugeMetricFamily("rayinfer_router_info", "The routers of this scrape; always 1.", labels=["router"])
            for router in routers:
                info.add_metric([router], 1)
            yield info

    def _labels(self, *own: str) -> list[str]:
        return ["model_name", *own, *(["router"] if self._snapshots[0].router else [])]

    def _models(self) -> Iterator[tuple[str, ModelCounts, list[str]]]:
        """Yield each router's counts of each model, with the value of the label `router`."""
        for snapshot in self._snapshots:
            for model, counts in list(snapshot.models.items()):
                yield model, counts, [snapshot.router] if snapshot.router else []


def _add(family: HistogramMetricFamily, histogram: Histogram, labels: Sequence[str]) -> None:
    """Append a histogram to a family, with cumulative buckets."""
    bounds = (*(repr(float(bound)) for bound in histogram.bounds), "+Inf")
    family.add_metric(
        labels, buckets=list(zip(bounds, accumulate(histogram.counts), strict=True)), sum_value=histogram.total
    )
