"""Dashboard of predictors and of the cache of predictions."""

from rayinfer.metrics import metric_list
from rayinfer_deployments.monitoring.dashboards.service import quantiles
from rayinfer_deployments.monitoring.panels import DASHBOARD, Dashboard, Panel, Query, Row

MODEL = ("model_name",)
_HITS = DASHBOARD.rate(metric_list.PREDICTION_CACHE_HITS, MODEL)
_MISSES = DASHBOARD.rate(metric_list.PREDICTION_CACHE_MISSES, MODEL)

PREDICTORS = Dashboard(
    name="predictors",
    title="rayinfer: predictors",
    description="Models that do not generate: items, latency, batches and the cache of predictions.",
    rows=(
        Row(
            "Items",
            [
                Panel(
                    title="Items",
                    description="Items that ended, cached ones among them; of models that generate, streams.",
                    unit="reqps",
                    queries=[Query(DASHBOARD.rate(metric_list.REQUESTS_FINISHED, MODEL), "{{model_name}}")],
                ),
                quantiles("Latency", "Arrival to the end.", metric_list.END_TO_END),
                Panel(
                    title="Tokens of a batch",
                    description="Mean cost of an engine's batch.",
                    unit="suffix: tokens",
                    queries=[
                        Query(
                            DASHBOARD.mean(metric_list.STEP_TOKENS, ["model_name", "engine"]),
                            "{{model_name}} {{engine}}",
                        )
                    ],
                ),
            ],
        ),
        Row(
            "Cache of predictions",
            [
                Panel(
                    title="Items from the cache",
                    description="Share of the items that were not computed.",
                    unit="percentunit",
                    most=1,
                    queries=[Query(f"{_HITS} / ({_HITS} + {_MISSES} > 0)", "{{model_name}}")],
                ),
                Panel(
                    title="Look-ups",
                    description="Items by where they were found, and those that engines had to compute.",
                    unit="reqps",
                    is_stacked=True,
                    queries=[
                        Query(DASHBOARD.rate(metric_list.PREDICTION_CACHE_HITS, ["source"]), "{{source}}"),
                        Query(DASHBOARD.rate(metric_list.PREDICTION_CACHE_MISSES), "computed"),
                    ],
                ),
                Panel(
                    title="Saved time",
                    description="Seconds a second that the answers of hits took when they were computed.",
                    unit="short",
                    queries=[Query(DASHBOARD.rate(metric_list.PREDICTION_CACHE_SAVED, MODEL), "{{model_name}}")],
                ),
                Panel(
                    title="Memory of the cache",
                    description="Bytes of the predictions in each router's memory.",
                    unit="bytes",
                    queries=[Query(DASHBOARD.total(metric_list.PREDICTION_CACHE_BYTES, ["router"]), "{{router}}")],
                ),
                Panel(
                    title="Entries and evictions",
                    description="Predictions in memory, and those a second that made room for others.",
                    unit="short",
                    queries=[
                        Query(DASHBOARD.total(metric_list.PREDICTION_CACHE_ENTRIES), "entries"),
                        Query(DASHBOARD.rate(metric_list.PREDICTION_CACHE_EVICTIONS), "evictions a second"),
                    ],
                ),
                Panel(
                    title="Redis",
                    description="Errors a second by kind, and 1 while a router's circuit breaker is open.",
                    unit="short",
                    queries=[
                        Query(DASHBOARD.rate(metric_list.PREDICTION_CACHE_REDIS_ERRORS, ["kind"]), "errors: {{kind}}"),
                        Query(
                            DASHBOARD.largest(metric_list.PREDICTION_CACHE_BREAKER, ["router"], state="open"),
                            "open: {{router}}",
                        ),
                    ],
                ),
            ],
        ),
    ),
)
