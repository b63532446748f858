"""Prometheus families of the caches of predictions of one or several routers."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from rayinfer.metrics.prediction_cache_counts import BREAKER_STATES, ModelCacheCounts, PredictionCacheCounts

_PREFIX = "rayinfer_prediction_cache"
_Counts = Sequence[tuple[str, PredictionCacheCounts]]  # with the value of the label `router`, "" without routers


def prediction_cache_families(routers: Sequence[tuple[str, PredictionCacheCounts | None]]) -> Iterator[Metric]:
    """Yield the families of the routers that have a cache."""
    counts: _Counts = [(router, each) for router, each in routers if each is not None]
    if not counts:
        return
    yield _hits(counts)
    yield _by_model(counts, "misses", "Items that were sent to engines.", lambda it: it.misses)
    yield _by_model(
        counts, "saved_seconds", "What the answers of hits took when they were computed.", lambda it: it.saved_s
    )
    yield from _memory(counts)
    yield from _redis(counts)


def _hits(counts: _Counts) -> Metric:
    family = CounterMetricFamily(
        f"{_PREFIX}_hits", "Items that were not computed, by where they were found.", labels=_labels(counts, "source")
    )
    for router, each in counts:
        for model, of_model in list(each.models.items()):
            for source, count in of_model.hits.items():
                family.add_metric([model, source, *_value(router)], count)
    return family


def _by_model(counts: _Counts, name: str, description: str, value: Callable[[ModelCacheCounts], float]) -> Metric:
    family = CounterMetricFamily(f"{_PREFIX}_{name}", description, labels=_labels(counts))
    for router, each in counts:
        for model, of_model in list(each.models.items()):
            family.add_metric([model, *_value(router)], value(of_model))
    return family


def _memory(counts: _Counts) -> Iterator[Metric]:
    labels = _labels(counts)[1:]
    size = GaugeMetricFamily(f"{_PREFIX}_bytes", "Bytes of the predictions in memory.", labels=labels)
    entries = GaugeMetricFamily(f"{_PREFIX}_entries", "Predictions in memory.", labels=labels)
    evicted = CounterMetricFamily(f"{_PREFIX}_evictions", "Predictions that made room for others.", labels=labels)
    for router, each in counts:
        size.add_metric(_value(router), each.memory_bytes)
        entries.add_metric(_value(router), each.num_entries)
        evicted.add_metric(_value(router), each.num_evicted)
    yield from (size, entries, evicted)


def _redis(counts: _Counts) -> Iterator[Metric]:
    labels = _labels(counts)[1:]
    state = GaugeMetricFamily(
        f"{_PREFIX}_breaker_state",
        "1 in the state of the circuit breaker in front of Redis, else 0; open: Redis is not asked.",
        labels=["state", *labels],
    )
    errors = CounterMetricFamily(
        f"{_PREFIX}_redis_errors",
        "Failed commands, invalid values, and predictions that were not written.",
        labels=["kind", *labels],
    )
    for router, each in counts:
        if each.breaker_state is None:
            continue
        for known in BREAKER_STATES:
            state.add_metric([known, *_value(router)], float(known == each.breaker_state))
        for kind, count in list(each.redis_errors.items()):
            errors.add_metric([kind, *_value(router)], count)
    if state.samples:
        yield from (state, errors)


def _labels(counts: _Counts, *own: str) -> list[str]:
    return ["model_name", *own, *(["router"] if counts[0][0] else [])]


def _value(router: str) -> list[str]:
    return [router] if router else []
