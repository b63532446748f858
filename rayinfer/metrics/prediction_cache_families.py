"""Prometheus families of the caches of predictions of one or several routers."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.metrics_core import Metric

from rayinfer.metrics import metric_list
from rayinfer.metrics.definition import MetricDefinition
from rayinfer.metrics.prediction_cache_counts import BREAKER_STATES, ModelCacheCounts, PredictionCacheCounts

_Counts = Sequence[tuple[list[str], PredictionCacheCounts]]  # with the value of the label `router`, [] without routers


def prediction_cache_families(routers: Sequence[tuple[str, PredictionCacheCounts | None]]) -> Iterator[Metric]:
    """Yield the families of the routers that have a cache."""
    counts: _Counts = [([router] if router else [], each) for router, each in routers if each is not None]
    if not counts:
        return
    has_routers = bool(counts[0][0])
    yield _hits(counts, has_routers=has_routers)
    for definition, value in (
        (metric_list.PREDICTION_CACHE_MISSES, _misses),
        (metric_list.PREDICTION_CACHE_SAVED, _saved_s),
    ):
        yield _by_model(definition, counts, value, has_routers=has_routers)
    yield from _memory(counts, has_routers=has_routers)
    yield from _redis(counts, has_routers=has_routers)


def _misses(counts: ModelCacheCounts) -> float:
    return counts.misses


def _saved_s(counts: ModelCacheCounts) -> float:
    return counts.saved_s


def _hits(counts: _Counts, *, has_routers: bool) -> Metric:
    family = metric_list.PREDICTION_CACHE_HITS.counter(has_routers=has_routers)
    for router, each in counts:
        for model, of_model in list(each.models.items()):
            for source, count in of_model.hits.items():
                family.add_metric([model, source, *router], count)
    return family


def _by_model(
    definition: MetricDefinition, counts: _Counts, value: Callable[[ModelCacheCounts], float], *, has_routers: bool
) -> Metric:
    family = definition.counter(has_routers=has_routers)
    for router, each in counts:
        for model, of_model in list(each.models.items()):
            family.add_metric([model, *router], value(of_model))
    return family


def _memory(counts: _Counts, *, has_routers: bool) -> Iterator[Metric]:
    size = metric_list.PREDICTION_CACHE_BYTES.gauge(has_routers=has_routers)
    entries = metric_list.PREDICTION_CACHE_ENTRIES.gauge(has_routers=has_routers)
    evicted = metric_list.PREDICTION_CACHE_EVICTIONS.counter(has_routers=has_routers)
    for router, each in counts:
        size.add_metric(router, each.memory_bytes)
        entries.add_metric(router, each.num_entries)
        evicted.add_metric(router, each.num_evicted)
    yield from (size, entries, evicted)


def _redis(counts: _Counts, *, has_routers: bool) -> Iterator[Metric]:
    state = metric_list.PREDICTION_CACHE_BREAKER.gauge(has_routers=has_routers)
    errors = metric_list.PREDICTION_CACHE_REDIS_ERRORS.counter(has_routers=has_routers)
    for router, each in counts:
        if each.breaker_state is None:
            continue
        for known in BREAKER_STATES:
            state.add_metric([known, *router], float(known == each.breaker_state))
        for kind, count in list(each.redis_errors.items()):
            errors.add_metric([kind, *router], count)
    if state.samples:
        yield from (state, errors)
