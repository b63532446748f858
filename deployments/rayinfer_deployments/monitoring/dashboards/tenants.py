"""Dashboard of the tenants: their requests, tokens, waits and failures."""

from rayinfer.metrics import metric_list
from rayinfer_deployments.monitoring.panels import DASHBOARD, Dashboard, Panel, Query, Row

TENANT = ("tenant",)
LEGEND = "{{tenant}}"
_GENERATED = DASHBOARD.rate(metric_list.TENANT_GENERATION_TOKENS, TENANT)
_ENDED = DASHBOARD.rate(metric_list.TENANT_REQUESTS, TENANT)
_WAITED = DASHBOARD.rate(metric_list.TENANT_QUEUE_TIME, TENANT)

TENANTS = Dashboard(
    name="tenants",
    title="rayinfer: tenants",
    description="Requests, tokens, waits and failures of each tenant.",
    has_model=False,
    rows=(
        Row(
            "Use",
            [
                Panel(
                    title="Generated tokens",
                    description="Tokens sent to each tenant.",
                    unit="suffix: tokens/s",
                    is_stacked=True,
                    queries=[Query(_GENERATED, LEGEND)],
                ),
                Panel(
                    title="Prompt tokens",
                    description="Prompt tokens of each tenant's streams that began to answer.",
                    unit="suffix: tokens/s",
                    is_stacked=True,
                    queries=[Query(DASHBOARD.rate(metric_list.TENANT_PROMPT_TOKENS, TENANT), LEGEND)],
                ),
                Panel(
                    title="Streams",
                    description="Streams of each tenant that ended.",
                    unit="reqps",
                    is_stacked=True,
                    queries=[Query(_ENDED, LEGEND)],
                ),
                Panel(
                    title="Share of the generated tokens",
                    description="Under load, tenants' shares follow their weights.",
                    unit="percentunit",
                    most=1,
                    queries=[
                        Query(
                            f"{_GENERATED} / ignoring (tenant) group_left ()"
                            f" {DASHBOARD.rate(metric_list.TENANT_GENERATION_TOKENS)}",
                            LEGEND,
                        )
                    ],
                ),
            ],
        ),
        Row(
            "Service",
            [
                Panel(
                    title="Mean wait in the queue",
                    description="Arrival to an engine's acceptance; longer for a tenant beyond its share.",
                    unit="s",
                    queries=[Query(f"{_WAITED} / ({_ENDED} > 0)", LEGEND)],
                ),
                Panel(
                    title="Failed streams",
                    description="Share of a tenant's streams that ended with error or timeout.",
                    unit="percentunit",
                    queries=[
                        Query(
                            DASHBOARD.rate(metric_list.TENANT_REQUESTS, TENANT, finished_reason="~error|timeout")
                            + f" / ({_ENDED} > 0)",
                            LEGEND,
                        )
                    ],
                ),
                Panel(
                    title="Clients that left",
                    description="Streams that their clients closed before the end.",
                    unit="reqps",
                    queries=[
                        Query(DASHBOARD.rate(metric_list.TENANT_REQUESTS, TENANT, finished_reason="abort"), LEGEND)
                    ],
                ),
            ],
        ),
    ),
)
