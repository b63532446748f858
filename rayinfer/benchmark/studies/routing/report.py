"""All routing measurements in one run, with their bounds."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rayinfer.benchmark.load.report import Environment, describe_environment
from rayinfer.benchmark.studies.routing.prefixes import Hits, conversation_hits, document_hits
from rayinfer.benchmark.studies.routing.priorities import (
    URGENT_LOAD,
    Shares,
    UrgentArrival,
    patient_share,
    tenant_shares,
    urgent_arrivals,
)

WEIGHT = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RoutingReport:
    """Routing measurements on one model."""

    model: str
    urgent: UrgentArrival
    patient: Shares
    tenants: Shares
    conversations_by_prefix: Hits
    conversations_by_load: Hits
    conversations_at_random: Hits
    documents_grouped: Hits
    documents_in_order: Hits
    environment: Environment = field(default_factory=describe_environment)


async def run_routing_benchmark(
    model: str, folder: Path, *, on_part: Callable[[str], None] = lambda _: None, **settings: Any
) -> RoutingReport:
    """Measure all parts one after the other, on engines of one thread each."""
    on_part("urgent requests among patient ones")
    urgent = await urgent_arrivals(folder, **settings)
    on_part("what patient requests get under urgent load")
    patient = await patient_share(folder, **settings)
    on_part("two tenants that want more than there is")
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
        patient=patient,
        tenants=tenants,
        conversations_by_prefix=by_prefix,
        conversations_by_load=by_load,
        conversations_at_random=at_random,
        documents_grouped=grouped,
        documents_in_order=in_order,
    )


def print_routing_report(report: RoutingReport, console: Console) -> None:
    """Show the figures beside what they should be."""
    table = Table(title=f"Routing, {report.model}")
    for heading in ("what", "measured", "beside it"):
        table.add_column(heading)
    urgent, large = report.urgent, report.tenants.share("large")
    table.add_row(
        f"urgent request among {urgent.num_patient} patient ones, first token",
        f"{1e3 * urgent.urgent_s:.0f} ms, at most {1e3 * urgent.worst_urgent_s:.0f} ms and {urgent.worst_steps} steps",
        f"3 steps and its prefill {1e3 * urgent.limit_s:.0f} ms; first come, first served "
        f"{1e3 * urgent.first_come_s:.0f} ms",
    )
    table.add_row(
        "likewise, steps of its engine from when it was sent",
        f"at most {urgent.worst_steps_in_all}, {100 * urgent.worst_steps_in_all / urgent.first_come_steps:.0f} %",
        f"at most 25 % of first come, first served, {urgent.first_come_steps}",
    )
    table.add_row(
        "patient requests' tokens beside urgent ones at 90 % load",
        f"{100 * report.patient.share('patient'):.0f} %",
        f"{100 * (1 - URGENT_LOAD):.0f} % is what the urgent ones leave",
    )
    table.add_row(
        f"tenants of weights {WEIGHT:g} to 1, tokens", f"{large / (1 - large):.2f} to 1", f"{WEIGHT:g} to 1 ± 15 %"
    )
    table.add_row(
        "conversations, cacheable prompt tokens found",
        f"{100 * report.conversations_by_prefix.share:.0f} %",
        f"at random {100 * report.conversations_at_random.share:.0f} %, "
        f"by load alone {100 * report.conversations_by_load.share:.0f} %",
    )
    table.add_row(
        "questions about documents, likewise",
        f"{100 * report.documents_grouped.share:.0f} %",
        f"in order of arrival {100 * report.documents_in_order.share:.0f} %",
    )
    console.print(table)
