"""Prometheus families of the tenants of one or several routers."""

from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import Metric

from rayinfer.metrics import metric_list
from rayinfer.metrics.tenant_counts import TenantCounts


def tenant_families(routers: Sequence[tuple[str, dict[str, TenantCounts]]]) -> Iterator[Metric]:
    """Yield the families of all routers' tenants."""
    has_routers = bool(routers[0][0])
    requests = metric_list.TENANT_REQUESTS.counter(has_routers=has_routers)
    prompts = metric_list.TENANT_PROMPT_TOKENS.counter(has_routers=has_routers)
    answers = metric_list.TENANT_GENERATION_TOKENS.counter(has_routers=has_routers)
    waits = metric_list.TENANT_QUEUE_TIME.counter(has_routers=has_routers)
    for name, tenants in routers:
        router = [name] if name else []
        for tenant, counts in list(tenants.items()):
            for reason, count in counts.finished.items():
                requests.add_metric([tenant, reason, *router], count)
            prompts.add_metric([tenant, *router], counts.prompt_tokens)
            answers.add_metric([tenant, *router], counts.generation_tokens)
            waits.add_metric([tenant, *router], counts.queue_s)
    yield from (requests, prompts, answers, waits)
