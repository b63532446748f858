"""Load of a router for endpoint pickers: how much waits and runs, without names of models, tenants and engines."""

from statistics import fmean

from rayinfer.metrics import metric_list
from rayinfer.metrics.families import MetricsSnapshot


def load_text(snapshot: MetricsSnapshot) -> bytes:
    """Render sums over models and engines as Prometheus text; of the KV caches' usage the mean."""
    engines = snapshot.engines.values()
    queued = sum(counts.num_queued for counts in snapshot.models.values())
    values = {
        metric_list.NUM_RUNNING: sum(stats.num_running for stats in engines),
        metric_list.NUM_WAITING: queued + sum(stats.num_waiting for stats in engines),
        metric_list.KV_CACHE_USAGE: fmean([stats.kv_cache_usage for stats in engines] or [0.0]),
    }
    return "".join(
        f"# HELP {metric.name} {metric.description}\n# TYPE {metric.name} gauge\n{metric.name} {value:g}\n"
        for metric, value in values.items()
    ).encode()
