"""Counters of tenants, bounded in number."""

from dataclasses import dataclass, field
from typing import get_args

from rayinfer.outputs import FinishReason

MAX_TENANTS = 200  # a header that clients choose must not fill Prometheus
NO_TENANT, OTHER_TENANTS = "(none)", "(other)"


@dataclass(slots=True)
class TenantCounts:
    """Everything that one router counted for one tenant."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    queue_s: float = 0.0
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(get_args(FinishReason), 0))


def counts_of_tenant(tenants: dict[str, TenantCounts], tenant: str) -> TenantCounts:
    """Return a tenant's counts; beyond `MAX_TENANTS` new ones share one."""
    name = tenant or NO_TENANT
    if name not in tenants and len(tenants) >= MAX_TENANTS:
        name = OTHER_TENANTS
    if (counts := tenants.get(name)) is None:
        counts = tenants[name] = TenantCounts()
    return counts
