"""Recording rules: what dashboards and alerts compute over long windows, once for all of them."""

from dataclasses import dataclass

from rayinfer.metrics import metric_list
from rayinfer.metrics.definition import MetricDefinition
from rayinfer_deployments.monitoring.expressions import Scope

WINDOWS = ("5m", "30m", "1h", "6h", "3d")
BUDGET_WINDOW = "30d"
MODEL = ("job", "model_name")
RULES = Scope()


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording rule."""

    definition: MetricDefinition
    expression: str


@dataclass(frozen=True, slots=True)
class Objective:
    """One objective: the share of events that miss it in a window, and the place of its target."""

    name: str  # within names of metrics
    title: str  # of alerts
    what: str  # that misses it
    target: str  # place that `Objectives.placed` fills

    def misses(self, window: str) -> str:
        """Return the share of misses among all events in a window."""
        if self.name == "failure":
            failed = RULES.increase(
                metric_list.REQUESTS_FINISHED, MODEL, window=window, finished_reason="~error|timeout"
            )
            ended = RULES.increase(metric_list.REQUESTS_FINISHED, MODEL, window=window)
            rejected = f"({RULES.increase(metric_list.ADMISSION_REJECTIONS, MODEL, window=window)} or {ended} * 0)"
            return f"({failed} + {rejected}) / ({ended} + {rejected})"
        metric, limit = {
            "ttft": (metric_list.FIRST_TOKEN, "@ttft_s@"),
            "itl": (metric_list.INTER_TOKEN, "@itl_s@"),
        }[self.name]
        good = RULES.increase(metric, MODEL, window=window, part="bucket", le=limit)
        return f"1 - {good} / {RULES.increase(metric, MODEL, window=window, part='count')}"

    def ratio(self, window: str) -> MetricDefinition:
        """Return the recorded metric of a window."""
        return _recorded(f"rayinfer:{self.name}_misses:ratio_{window}", f"Share of {self.what}, over {window}.")

    @property
    def budget(self) -> MetricDefinition:
        """Return the recorded metric of what is left of the error budget."""
        return _recorded(
            f"rayinfer:{self.name}_budget_left:ratio_{BUDGET_WINDOW}",
            f"Share of the error budget of {BUDGET_WINDOW} that is left; below 0 the objective is missed.",
        )


def _recorded(name: str, description: str) -> MetricDefinition:
    return MetricDefinition(name, "gauge", description, ("model_name",), is_per_router=False)


OBJECTIVES = (
    Objective("ttft", "FirstToken", "streams whose first token came late", "@ttft_target@"),
    Objective("itl", "InterToken", "tokens that came late", "@itl_target@"),
    Objective("failure", "Failure", "streams that failed or were rejected", "@success_target@"),
)
STREAMS = _recorded("rayinfer:streams:increase1h", "Streams that ended in the last hour.")
ENGINES = _recorded("rayinfer:engines:count", "Engines that some router is connected to.")
WAITING = _recorded("rayinfer:requests_waiting:count", "Requests that wait in front of engines and in them.")
LOST = _recorded("rayinfer:engines_lost:increase1h", "Engines that were lost in the last hour.")
RECORDED = (
    STREAMS,
    ENGINES,
    WAITING,
    LOST,
    *(objective.ratio(window) for objective in OBJECTIVES for window in WINDOWS),
    *(objective.budget for objective in OBJECTIVES),
)


def state_recordings() -> list[Recording]:
    """Return what is recorded of engines and queues; routers count the same engines, so the greatest number holds."""
    per_router = f"sum without (state) ({RULES.series(metric_list.ENGINES, state='~running|paused|asleep')})"
    lost = f"increase({RULES.series(metric_list.ENGINES_LOST)}[1h])"
    return [
        Recording(STREAMS, RULES.increase(metric_list.REQUESTS_FINISHED, MODEL, window="1h")),
        Recording(ENGINES, f"max by (job, model_name) ({per_router})"),
        Recording(WAITING, RULES.total(metric_list.NUM_WAITING, MODEL)),
        Recording(LOST, f"max by (job, model_name) ({lost})"),
    ]


def objective_recordings() -> list[Recording]:
    """Return the shares of misses in each window."""
    return [
        Recording(objective.ratio(window), objective.misses(window)) for objective in OBJECTIVES for window in WINDOWS
    ]


def budget_recordings() -> list[Recording]:
    """Return what is left of the error budgets: they read weeks, so they are computed rarely."""
    return [
        Recording(objective.budget, f"1 - ({objective.misses(BUDGET_WINDOW)}) / (1 - {objective.target})")
        for objective in OBJECTIVES
    ]
