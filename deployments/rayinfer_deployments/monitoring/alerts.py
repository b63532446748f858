"""Alerts: burn rates of the objectives, lost engines, queues, memory, batches and keys."""

from dataclasses import dataclass
from typing import Literal

from rayinfer.metrics import metric_list
from rayinfer_deployments.monitoring.foreign_metrics import UP
from rayinfer_deployments.monitoring.recording_rules import (
    ENGINES,
    LOST,
    MODEL,
    OBJECTIVES,
    RULES,
    STREAMS,
    WAITING,
    Objective,
)

Severity = Literal["critical", "warning"]
FEWEST_STREAMS = 20  # in an hour: below, one slow stream would be a burn rate
ON_MODEL = "on (job, model_name)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """An alert; its texts may have Prometheus' own places, such as `{{ $labels.model_name }}`."""

    name: str
    expression: str
    lasting: str  # how long the expression must hold
    severity: Severity
    summary: str
    description: str
    dashboard: str  # that shows it
    window: str = ""  # of a burn rate: a label, as several alerts have one name


@dataclass(frozen=True, slots=True)
class _Burn:
    """A burn rate: how many times faster than allowed the error budget is used up, in a long and a short window."""

    long: str
    short: str
    factor: float
    lasting: str
    severity: Severity


BURNS = (
    _Burn("1h", "5m", 14.4, "2m", "critical"),  # the budget of 30 days would last two days
    _Burn("6h", "30m", 6, "15m", "critical"),  # five days
    _Burn("3d", "6h", 1, "1h", "warning"),
)


def alerts() -> list[Alert]:
    """Return all alerts."""
    burning = [_burn_alert(objective, burn) for objective in OBJECTIVES for burn in BURNS]
    return [*burning, *_budget_alerts(), *_engine_alerts(), *_load_alerts(), *_service_alerts()]


def _burn_alert(objective: Objective, burn: _Burn) -> Alert:
    limit = f"{burn.factor:g} * (1 - {objective.target})"
    long, short = (RULES.series(objective.ratio(window)) for window in (burn.long, burn.short))
    return Alert(
        name=f"Rayinfer{objective.title}BurnRate",
        expression=(
            f"{long} > {limit} and {short} > {limit} and {ON_MODEL} {RULES.series(STREAMS)} >= {FEWEST_STREAMS}"
        ),
        lasting=burn.lasting,
        severity=burn.severity,
        summary=f"{{{{ $labels.model_name }}}} uses its error budget {burn.factor:g} times too fast",
        description=(
            f"{{{{ $value | humanizePercentage }}}} {objective.what} in the last {burn.long}, and in the last"
            f" {burn.short} too many as well; the objective is {objective.target}."
        ),
        dashboard="service",
        window=burn.long,
    )


def _budget_alerts() -> list[Alert]:
    return [
        Alert(
            name=f"Rayinfer{objective.title}BudgetLow",
            expression=f"{RULES.series(objective.budget)} < 0.1",
            lasting="1h",
            severity="warning",
            summary="{{ $labels.model_name }} has little of its error budget left",
            description=(
                "{{ $value | humanizePercentage }} of the budget of 30 days is left; below 0 the objective of"
                f" {objective.target} is missed. These are {objective.what}."
            ),
            dashboard="service",
        )
        for objective in OBJECTIVES
    ]


def _engine_alerts() -> list[Alert]:
    engines, lost, waiting = RULES.series(ENGINES), RULES.series(LOST), RULES.series(WAITING)
    migrations = RULES.increase(metric_list.MIGRATIONS, MODEL, window="15m")
    ended = RULES.increase(metric_list.REQUESTS_FINISHED, MODEL, window="15m")
    lost_lately = f"max by (job, model_name) (increase({RULES.series(metric_list.ENGINES_LOST)}[15m]))"
    return [
        Alert(
            name="RayinferModelWithoutEngine",
            expression=f"{engines} == 0 and {ON_MODEL} ({lost} > 0 or {waiting} > 0)",
            lasting="1m",
            severity="critical",
            summary="{{ $labels.model_name }} has no engine",
            description="Its engines were lost or its requests wait for the first one; clients get 503 or no answer.",
            dashboard="engines",
        ),
        Alert(
            name="RayinferEngineNotReplaced",
            expression=f"{engines} < max_over_time({engines}[1h]) and {ON_MODEL} {lost} > 0",
            lasting="5m",
            severity="warning",
            summary="{{ $labels.model_name }} has fewer engines than an hour ago, and lost one",
            description="{{ $value }} engines are left. See `rayinfer status`; Ray may have no node with room.",
            dashboard="engines",
        ),
        Alert(
            name="RayinferEnginesCrash",
            expression=f"{lost_lately} >= 2.5",
            lasting="0m",
            severity="critical",
            summary="{{ $labels.model_name }} loses engines again and again",
            description="{{ $value | humanize }} engines ended by themselves in 15 minutes.",
            dashboard="engines",
        ),
        Alert(
            name="RayinferManyMigrations",
            expression=f"{migrations} > 10 and {migrations} > 0.1 * {ended}",
            lasting="5m",
            severity="warning",
            summary="Streams of {{ $labels.model_name }} often change their engine",
            description="{{ $value | humanize }} migrations in 15 minutes; each costs its client a gap.",
            dashboard="engines",
        ),
    ]


def _load_alerts() -> list[Alert]:
    waiting = RULES.series(WAITING)
    rejected = RULES.increase(metric_list.ADMISSION_REJECTIONS, MODEL, window="10m")
    ended = RULES.increase(metric_list.REQUESTS_FINISHED, MODEL, window="10m")
    usage = RULES.series(metric_list.KV_CACHE_USAGE)
    preempted = f"rate({RULES.series(metric_list.NUM_PREEMPTIONS)}[10m])"
    return [
        Alert(
            name="RayinferQueueGrows",
            expression=f"{waiting} > 10 and min_over_time({waiting}[10m]) > 0 and deriv({waiting}[10m]) > 0.01",
            lasting="5m",
            severity="warning",
            summary="The queue of {{ $labels.model_name }} grows",
            description="{{ $value }} requests wait, and more than ten minutes ago: more engines are needed.",
            dashboard="service",
        ),
        Alert(
            name="RayinferRejections",
            expression=f"{rejected} > 0.05 * ({rejected} + {ended})",
            lasting="5m",
            severity="warning",
            summary="{{ $labels.model_name }} rejects requests",
            description="{{ $value | humanize }} requests got 429 in ten minutes, as the queue was full.",
            dashboard="service",
        ),
        Alert(
            name="RayinferKvPressure",
            expression=f"max without (instance, pod) ({usage}) > 0.9"
            f" and on (job, model_name, engine) max without (instance, pod) ({preempted}) > 0",
            lasting="10m",
            severity="warning",
            summary="Engine {{ $labels.engine }} of {{ $labels.model_name }} has no KV blocks left",
            description=(
                "{{ $value | humanizePercentage }} of its blocks have readers, and requests are preempted: lower"
                " max_num_seqs, give it more memory, or add engines."
            ),
            dashboard="engines",
        ),
        Alert(
            name="RayinferBatchesStall",
            expression=(
                f"max by (job) ({RULES.series(metric_list.BATCH_ROWS_WAITING)}) > 0"
                f" and on (job) {RULES.increase(metric_list.BATCH_ROWS, ['job'], window='30m')} == 0"
            ),
            lasting="30m",
            severity="warning",
            summary="Batches do not advance",
            description="{{ $value }} rows wait, and none has ended for half an hour: requests of clients go first.",
            dashboard="batches",
        ),
    ]


def _service_alerts() -> list[Alert]:
    breaker = RULES.series(metric_list.PREDICTION_CACHE_BREAKER, state="open")
    return [
        Alert(
            name="RayinferServiceDown",
            expression=f"absent({RULES.series(metric_list.ROUTER_INFO)})",
            lasting="2m",
            severity="critical",
            summary="No router answers",
            description="Prometheus has read no router's metrics: the service is down, or it is not scraped.",
            dashboard="cluster",
        ),
        Alert(
            name="RayinferTargetDown",
            expression=f"{RULES.series(UP)} == 0 and on (job) {RULES.series(metric_list.ROUTER_INFO)}",
            lasting="5m",
            severity="warning",
            summary="{{ $labels.instance }} does not answer",
            description="Prometheus cannot read the metrics of {{ $labels.instance }} of {{ $labels.job }}.",
            dashboard="cluster",
        ),
        Alert(
            name="RayinferKeyFileInvalid",
            expression=f"min by (job) ({RULES.series(metric_list.KEY_FILE_VALID)}) == 0",
            lasting="1m",
            severity="warning",
            summary="The file of API keys cannot be read",
            description="The last keys stay in force; revoked and new ones have no effect. See `rayinfer status`.",
            dashboard="service",
        ),
        Alert(
            name="RayinferPredictionCacheCut",
            expression=f"max by (job, router) ({breaker}) == 1",
            lasting="10m",
            severity="warning",
            summary="A router has no cache of predictions in Redis",
            description="Its circuit breaker is open: Redis does not answer, and every prediction is computed.",
            dashboard="predictors",
        ),
    ]
