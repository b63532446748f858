"""Prometheus families of the batches of one or several routers."""

from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import Metric

from rayinfer.metrics import metric_list
from rayinfer.metrics.batch_counts import BatchCounts


def batch_families(routers: Sequence[tuple[str, BatchCounts | None]]) -> Iterator[Metric]:
    """Yield the families of the routers that take batches."""
    counts = [([router] if router else [], each) for router, each in routers if each is not None]
    if not counts:
        return
    has_routers = bool(counts[0][0])
    open_batches = metric_list.BATCHES_OPEN.gauge(has_routers=has_routers)
    waiting = metric_list.BATCH_ROWS_WAITING.gauge(has_routers=has_routers)
    running = metric_list.BATCH_ROWS_RUNNING.gauge(has_routers=has_routers)
    ended = metric_list.BATCH_ROWS.counter(has_routers=has_routers)
    for router, each in counts:
        open_batches.add_metric(router, each.num_open)
        waiting.add_metric(router, each.num_waiting_rows)
        running.add_metric(router, each.num_running_rows)
        ended.add_metric(["completed", *router], each.num_completed_rows)
        ended.add_metric(["failed", *router], each.num_failed_rows)
    yield from (open_batches, waiting, running, ended)
