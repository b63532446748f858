"""Autoscaling policy for Serve: the number of a model's engines follows engine metrics and router queues.

Serve pickles this module by value for its controller, so it keeps no state of its own.
"""

import time
import warnings
from collections.abc import Iterable
from typing import Any

from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from rayinfer.outputs import EngineState, EngineStats
from rayinfer.routing.autoscaling_policy import ModelLoad, ScalingPolicy
from rayinfer.routing.autoscaling_settings import AutoscalingSettings
from rayinfer.routing.first_tokens import NOTHING, FirstTokenCounts
from rayinfer_deployments.discovery.scale_from_zero import Backlogs, RayTable
from rayinfer_deployments.discovery.scaling_decisions import ScalingDecision, ScalingDecisions

REPORT_INTERVAL_S = 1.0  # between two reports of an engine's replica
LOOK_BACK_S = 2.0  # of which Serve keeps the reports; the last one counts
STALE_AFTER_S = 10.0  # an older report is ignored

MAX_NUM_SEQS = "max_num_seqs"  # the reports' keys, beside those of FirstTokenCounts
NUM_RUNNING = "num_running"
CACHE_USAGE = "cache_usage"
IS_RUNNING = "is_running"


class EngineMetricsPolicy:
    """Custom autoscaling policy, which Serve's controller calls ten times a second."""

    def __init__(self, **settings: Any) -> None:
        self._policy = ScalingPolicy(AutoscalingSettings(**settings))
        self._backlogs = Backlogs(RayTable())
        self._decisions = ScalingDecisions(RayTable())

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Return the number of engines that there should be."""
        reports, num_engines = latest_reports(context), context.current_num_replicas
        backlog = NOTHING if num_engines else self._backlog(context)
        load = load_of(reports, num_engines, backlog)
        before = context.target_num_replicas
        wanted = self._policy.decide(context.current_time, before, load)
        if wanted != before:
            decision = ScalingDecision(time_s=time.time(), before=before, after=wanted, reason=self._policy.reason)
            self._decisions.record(context.app_name, context.deployment_name, decision)
        return wanted, {}

    def _backlog(self, context: AutoscalingContext) -> FirstTokenCounts:
        return self._backlogs.total(context.app_name, context.deployment_name, context.current_time)


def serve_autoscaling(settings: AutoscalingSettings) -> AutoscalingConfig:
    """Make the autoscaling setting of an engine deployment; delays are the policy's own, Serve adds none."""
    policy = AutoscalingPolicy(policy_function=EngineMetricsPolicy, policy_kwargs=settings.model_dump(mode="json"))
    with warnings.catch_warnings():
        # Ray 2.60 names environment variables in place of the interval, but reads them nowhere.
        warnings.simplefilter("ignore", DeprecationWarning)
        return AutoscalingConfig(
            min_replicas=settings.min_replicas,
            initial_replicas=settings.first_replicas,
            max_replicas=settings.max_replicas,
            metrics_interval_s=REPORT_INTERVAL_S,
            look_back_period_s=LOOK_BACK_S,
            upscale_delay_s=0.0,
            downscale_delay_s=0.0,
            downscale_to_zero_delay_s=0.0,
            policy=policy,
        )


def engine_report(stats: EngineStats, max_num_seqs: int, of_routers: FirstTokenCounts) -> dict[str, float]:
    """Write the report of one engine's replica: the engine's state, and the routers' queues as last reported to it."""
    of_engine = {
        MAX_NUM_SEQS: max_num_seqs,
        NUM_RUNNING: stats.num_running,
        CACHE_USAGE: stats.kv_cache_usage,
        IS_RUNNING: stats.state == EngineState.RUNNING,
    }
    return {name: float(value) for name, value in (of_engine | of_routers._asdict()).items()}


def latest_reports(context: AutoscalingContext) -> list[dict[str, float]]:
    """Collect the latest report of each running replica, without those that are too old."""
    reports: dict[Any, dict[str, float]] = {}
    for name, series_by_replica in (context.raw_metrics or {}).items():
        for replica, series in series_by_replica.items():
            if series and series[-1].timestamp > context.current_time - STALE_AFTER_S:
                reports.setdefault(replica, {})[name] = series[-1].value
    return [report for report in reports.values() if MAX_NUM_SEQS in report]


def load_of(reports: Iterable[dict[str, float]], num_engines: int, backlog: FirstTokenCounts = NOTHING) -> ModelLoad:
    """Add up reports. Every router sends all replicas the same counts, so the greatest sum is complete.

    Without a report the `backlog` is what routers report where there is no engine.
    """
    known = list(reports)
    if not known or not num_engines:
        return ModelLoad(num_engines=num_engines, first_tokens=backlog, is_complete=False)
    return ModelLoad(
        num_engines=num_engines,
        num_running=sum(report[NUM_RUNNING] for report in known),
        max_num_seqs=sum(report[MAX_NUM_SEQS] for report in known) / len(known),
        cache_usage=sum(report[CACHE_USAGE] for report in known),
        first_tokens=FirstTokenCounts(
            *(max(int(report[name]) for report in known) for name in FirstTokenCounts._fields)
        ),
        is_complete=len(known) >= num_engines,
        is_suspended=not all(report[IS_RUNNING] for report in known),
    )
