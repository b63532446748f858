"""Dashboard of batches (`/v1/batches`): their rows, and what they cost clients."""

from rayinfer.metrics import metric_list
from rayinfer_deployments.monitoring.dashboards.service import quantiles
from rayinfer_deployments.monitoring.panels import DASHBOARD, Dashboard, Panel, Query, Row

_WAITING = DASHBOARD.largest(metric_list.BATCH_ROWS_WAITING)
_RATE = DASHBOARD.rate(metric_list.BATCH_ROWS)

BATCHES = Dashboard(
    name="batches",
    title="rayinfer: batches",
    description="Rows of /v1/batches, and the latency of requests beside them.",
    rows=(
        Row(
            "Batches",
            [
                Panel(
                    title="Open batches",
                    description="Batches whose rows are being computed.",
                    unit="short",
                    kind="stat",
                    width=4,
                    queries=[Query(DASHBOARD.largest(metric_list.BATCHES_OPEN), "open")],
                ),
                Panel(
                    title="Rows that wait",
                    description="Rows of all open batches that no router has begun.",
                    unit="short",
                    kind="stat",
                    width=4,
                    queries=[Query(_WAITING, "waiting")],
                ),
                Panel(
                    title="Time left",
                    description="Rows that wait, at the rate of the last five minutes.",
                    unit="s",
                    kind="stat",
                    width=4,
                    queries=[
                        Query(
                            f"{_WAITING} / {DASHBOARD.rate(metric_list.BATCH_ROWS, window='5m')}",
                            "left",
                        )
                    ],
                ),
                Panel(
                    title="Failed rows",
                    description="Share of the rows of the last hour whose answer is an error.",
                    unit="percentunit",
                    kind="stat",
                    width=4,
                    queries=[
                        Query(
                            f"{DASHBOARD.increase(metric_list.BATCH_ROWS, window='1h', outcome='failed')}"
                            f" / {DASHBOARD.increase(metric_list.BATCH_ROWS, window='1h')}",
                            "failed",
                        )
                    ],
                ),
            ],
        ),
        Row(
            "Rows",
            [
                Panel(
                    title="Rows by outcome",
                    description="Rows that ended.",
                    unit="suffix: rows/s",
                    is_stacked=True,
                    queries=[Query(DASHBOARD.rate(metric_list.BATCH_ROWS, ["outcome"]), "{{outcome}}")],
                ),
                Panel(
                    title="Rows that wait",
                    description="Rows of all open batches that no router has begun.",
                    unit="short",
                    queries=[Query(_WAITING, "waiting")],
                ),
                Panel(
                    title="Rows that run",
                    description="Rows that routers compute, at the lowest priority.",
                    unit="short",
                    queries=[Query(DASHBOARD.total(metric_list.BATCH_ROWS_RUNNING, ["router"]), "{{router}}")],
                ),
            ],
        ),
        Row(
            "Beside them",
            [
                quantiles(
                    "Time to first token",
                    "Of all requests, rows of batches among them.",
                    metric_list.FIRST_TOKEN,
                ),
                Panel(
                    title="Running requests",
                    description="Requests in the engines' batches, rows of batches among them.",
                    unit="short",
                    queries=[Query(DASHBOARD.total(metric_list.NUM_RUNNING, ["model_name"]), "{{model_name}}")],
                ),
            ],
        ),
    ),
)
