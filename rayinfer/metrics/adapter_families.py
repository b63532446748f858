"""Prometheus families of LoRA adapters: of engines, and of the requests of one or several routers."""

import time
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.metrics_core import Metric

from rayinfer.metrics import metric_list
from rayinfer.metrics.adapter_counts import AdapterCounts
from rayinfer.outputs import AdapterStats, EngineStats


def engine_adapter_families(engines: Mapping[tuple[str, str], EngineStats], *, has_routers: bool) -> Iterator[Metric]:
    """Yield what engines with adapters report; none without them."""
    for family in _families(
        [(labels, stats.adapters) for labels, stats in engines.items() if stats.adapters is not None], has_routers
    ):
        if family.samples:
            yield family


def adapter_request_families(
    routers: Sequence[tuple[str, Mapping[tuple[str, str], AdapterCounts]]],
) -> Iterator[Metric]:
    """Yield the requests of all routers' adapters; nothing where none had one."""
    requests = metric_list.ADAPTER_REQUESTS.counter(has_routers=bool(routers[0][0]))
    for name, adapters in routers:
        router = [name] if name else []
        for (model, adapter), counts in list(adapters.items()):
            for reason, count in counts.finished.items():
                requests.add_metric([model, adapter, reason, *router], count)
    if requests.samples:
        yield requests


def _families(engines: Sequence[tuple[tuple[str, str], AdapterStats]], has_routers: bool) -> Iterator[Metric]:
    info = metric_list.ADAPTERS_INFO.gauge(has_routers=has_routers)
    resident = metric_list.ADAPTERS_RESIDENT.gauge(has_routers=has_routers)
    resident_bytes = metric_list.ADAPTERS_RESIDENT_BYTES.gauge(has_routers=has_routers)
    slot_bytes = metric_list.ADAPTERS_SLOT_BYTES.gauge(has_routers=has_routers)
    loads = metric_list.ADAPTER_LOADS.counter(has_routers=has_routers)
    evictions = metric_list.ADAPTER_EVICTIONS.counter(has_routers=has_routers)
    seconds = metric_list.ADAPTER_LOAD_SECONDS.counter(has_routers=has_routers)
    for labels, stats in engines:
        names = ",".join(stats.waiting), ",".join(stats.running)
        info.add_metric([*labels, str(stats.max_loras), *names], time.time())
        resident.add_metric(labels, stats.num_resident)
        resident_bytes.add_metric(labels, stats.resident_bytes)
        slot_bytes.add_metric(labels, stats.slot_bytes)
        loads.add_metric([*labels, "loaded"], stats.loads_total)
        loads.add_metric([*labels, "refused"], stats.failed_loads_total)
        evictions.add_metric(labels, stats.evictions_total)
        seconds.add_metric(labels, stats.load_seconds_total)
    yield from (info, resident, resident_bytes, slot_bytes, loads, evictions, seconds)
