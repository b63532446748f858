"""Dashboard of a service: objectives, traffic, latency and load by model."""

from rayinfer.metrics import metric_list
from rayinfer.metrics.definition import MetricDefinition
from rayinfer_deployments.monitoring.panels import DASHBOARD, Dashboard, Panel, Query, Row
from rayinfer_deployments.monitoring.recording_rules import OBJECTIVES, WAITING, Objective

MODEL = ("model_name",)
LIMITS = ((0, "green"), (0.01, "orange"), (0.05, "red"))
BUDGET_LIMITS = ((0, "red"), (0.1, "orange"), (0.3, "green"))


def _misses(title: str, objective: Objective) -> Panel:
    return Panel(
        title=title,
        description=f"Share of {objective.what}, in the last hour.",
        unit="percentunit",
        kind="stat",
        width=6,
        queries=[Query(DASHBOARD.series(objective.ratio("1h")), "{{model_name}}")],
        thresholds=LIMITS,
    )


def quantiles(title: str, description: str, metric: MetricDefinition) -> Panel:
    """Make a panel of a time's median, 95th and 99th percentile by model."""
    return Panel(
        title=title,
        description=description,
        unit="s",
        queries=[
            Query(DASHBOARD.quantile(quantile, metric, MODEL), f"{{{{model_name}}}} p{round(100 * quantile)}")
            for quantile in (0.5, 0.95, 0.99)
        ],
    )


OBJECTIVE_ROW = Row(
    "Objectives",
    [
        _misses("Late first tokens", OBJECTIVES[0]),
        _misses("Late tokens", OBJECTIVES[1]),
        _misses("Failed streams", OBJECTIVES[2]),
        Panel(
            title="Error budget left (streams)",
            description="Share of 30 days' budget of failed and rejected streams that is left.",
            unit="percentunit",
            kind="stat",
            width=6,
            least=None,
            queries=[Query(DASHBOARD.series(OBJECTIVES[2].budget), "{{model_name}}")],
            thresholds=BUDGET_LIMITS,
        ),
    ],
)
TRAFFIC_ROW = Row(
    "Traffic",
    [
        Panel(
            title="Streams by the way they ended",
            description="stop and length are answers; abort: the client left; error and timeout count as failures.",
            unit="reqps",
            is_stacked=True,
            queries=[
                Query(
                    DASHBOARD.rate(metric_list.REQUESTS_FINISHED, ["model_name", "finished_reason"]) + " > 0",
                    "{{model_name}} {{finished_reason}}",
                )
            ],
        ),
        Panel(
            title="Tokens",
            description="Prompt tokens (all, and those that the prefix cache had), and tokens sent as answers.",
            unit="suffix: tokens/s",
            queries=[
                Query(DASHBOARD.rate(metric_list.PROMPT_TOKENS), "prompt"),
                Query(DASHBOARD.rate(metric_list.PROMPT_TOKENS_CACHED), "prompt, cached"),
                Query(DASHBOARD.rate(metric_list.GENERATION_TOKENS), "generated"),
            ],
        ),
        Panel(
            title="Refused requests",
            description="Requests refused before they could generate: wrong ones, keys, limits, overload.",
            unit="reqps",
            is_stacked=True,
            queries=[Query(DASHBOARD.rate(metric_list.REQUESTS_REFUSED, ["reason"]), "{{reason}}")],
        ),
    ],
)
LATENCY_ROW = Row(
    "Latency",
    [
        quantiles("Time to first token", "Arrival to the first token.", metric_list.FIRST_TOKEN),
        quantiles("Inter-token latency", "One token to the next.", metric_list.INTER_TOKEN),
        quantiles("Request latency", "Arrival to the end of the answer.", metric_list.END_TO_END),
        quantiles("Queue time", "Arrival to an engine's acceptance.", metric_list.QUEUE_TIME),
        quantiles("Prefill time", "An engine's acceptance to the first token.", metric_list.PREFILL_TIME),
        Panel(
            title="First tokens by time",
            description="How many first tokens came within which time.",
            unit="s",
            kind="heatmap",
            least=None,
            queries=[
                Query(
                    DASHBOARD.rate(metric_list.FIRST_TOKEN, ["le"], part="bucket"),
                    "{{le}}",
                )
            ],
        ),
    ],
)
LOAD_ROW = Row(
    "Load",
    [
        Panel(
            title="Running and waiting requests",
            description="Requests in the engines' batches, and those that wait in front of engines and in them.",
            unit="short",
            queries=[
                Query(DASHBOARD.total(metric_list.NUM_RUNNING, MODEL), "{{model_name}} running"),
                Query(DASHBOARD.series(WAITING), "{{model_name}} waiting"),
            ],
        ),
        Panel(
            title="Mean size of requests",
            description="Prompt tokens of a request, those among them that were computed, and tokens of an answer.",
            unit="suffix: tokens",
            queries=[
                Query(DASHBOARD.mean(metric_list.REQUEST_PROMPT_TOKENS), "prompt"),
                Query(DASHBOARD.mean(metric_list.COMPUTED_PROMPT_TOKENS), "prompt, computed"),
                Query(DASHBOARD.mean(metric_list.REQUEST_GENERATION_TOKENS), "generated"),
            ],
        ),
        Panel(
            title="Rejected by full queues",
            description="Requests that a model's queue did not take (429).",
            unit="reqps",
            queries=[
                Query(DASHBOARD.rate(metric_list.ADMISSION_REJECTIONS, ["model_name", "reason"]), "{{model_name}}")
            ],
        ),
        Panel(
            title="Share of canaries",
            description="Share of a model's requests that its canary answers; 0 once it ended or was rolled back.",
            unit="percentunit",
            most=1,
            queries=[
                Query(
                    DASHBOARD.largest(metric_list.CANARY_SHARE, ["model_name", "canary"]),
                    "{{model_name}}: {{canary}}",
                )
            ],
        ),
    ],
)
SERVICE = Dashboard(
    name="service",
    title="rayinfer: service",
    description="Objectives, traffic, latency and load by model.",
    rows=(OBJECTIVE_ROW, TRAFFIC_ROW, LATENCY_ROW, LOAD_ROW),
)
