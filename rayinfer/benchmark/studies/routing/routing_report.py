"""All routing measurements in one run, and their report."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayinfer.benchmark.report import Environment, Table, describe_environment
from rayinfer.benchmark.studies.routing.prefixes import Hits, conversation_hits, document_hits
from rayinfer.benchmark.studies.routing.priorities import (
    URGENT_LOAD,
    Shares,
    UrgentArrival,
    background_share,
    tenant_shares,
    urgent_arrivals,
)

WEIGHT = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RoutingReport:
    """Routing measurements on one model."""

    model: str
    urgent: UrgentArrival
    background: Shares
    tenants: Shares
    conversations_by_prefix: Hits
    conversations_by_load: Hits
    conversations_at_random: Hits
    documents_grouped: Hits
    documents_in_order: Hits
    environment: Environment = field(default_factory=describe_environment)

    def tables(self) -> list[Table]:
        """Return the figures beside their bounds."""
        urgent, large = self.urgent, self.tenants.share("large")
        rows = [
            (
                f"urgent request among {urgent.num_background} background ones, first token",
                f"{1e3 * urgent.urgent_s:.0f} ms, at most {1e3 * urgent.worst_urgent_s:.0f} ms and "
                f"{urgent.worst_steps} steps",
                f"3 steps and its prefill {1e3 * urgent.limit_s:.0f} ms; first come, first served "
                f"{1e3 * urgent.first_come_s:.0f} ms",
            ),
            (
                "likewise, steps of its engine from when it was sent",
                f"at most {urgent.worst_steps_in_all}, {urgent.worst_steps_in_all / urgent.first_come_steps:.0%}",
                f"at most 25 % of first come, first served, {urgent.first_come_steps}",
            ),
            (
                "background requests' tokens beside urgent ones at 90 % load",
                f"{self.background.share('background'):.0%}",
                f"{1 - URGENT_LOAD:.0%} is left by the urgent ones",
            ),
            (
                f"tenants of weights {WEIGHT:g} to 1, tokens",
                f"{large / (1 - large):.2f} to 1",
                f"{WEIGHT:g} to 1 ± 15 %",
            ),
            (
                "conversations, cacheable prompt tokens found",
                f"{self.conversations_by_prefix.share:.0%}",
                f"at random {self.conversations_at_random.share:.0%}, "
                f"by load alone {self.conversations_by_load.share:.0%}",
            ),
            (
                "questions about documents, likewise",
                f"{self.documents_grouped.share:.0%}",
                f"in order of arrival {self.documents_in_order.share:.0%}",
            ),
        ]
        return [Table(f"Routing, {self.model}", ("what", "measured", "beside it"), rows)]


async def run_routing_benchmark(
    model: str, folder: Path, *, on_part: Callable[[str], None] = lambda _: None, **settings: Any
) -> RoutingReport:
    """Measure all parts one after the other, on engines of one thread each."""
    on_part("urgent requests among background ones")
    urgent = await urgent_arrivals(folder, **settings)
    on_part("background requests under urgent load")
    background = await background_share(folder, **settings)
    on_part("two tenants under overload")
    tenants = await tenant_shares(folder, weight=WEIGHT, **settings)
    on_part("conversations over two engines")
    by_prefix = await conversation_hits(folder, routing="prefix", **settings)
    by_load = await conversation_hits(folder, routing="load", **settings)
    at_random = await conversation_hits(folder, routing="random", **settings)
    on_part("questions about documents")
    grouped = await document_hits(folder, group_by_prefix=True, **settings)
    in_order = await document_hits(folder, group_by_prefix=False, **settings)
    return RoutingReport(
        model=model,
        urgent=urgent,
        background=background,
        tenants=tenants,
        conversations_by_prefix=by_prefix,
        conversations_by_load=by_load,
        conversations_at_random=at_random,
        documents_grouped=grouped,
        documents_in_order=in_order,
    )
