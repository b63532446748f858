from ray.serve._private.autoscaling_state import _resolve_policy_callable
from ray.serve._private.common import DeploymentID, ReplicaID, TimeStampedValue
from ray.serve.autoscaling_policy import _apply_autoscaling_config
from ray.serve.config import AutoscalingContext

from rayinfer.outputs import EngineStats
from rayinfer.routing.autoscaling_policy import ModelLoad
from rayinfer.routing.autoscaling_settings import AutoscalingSettings
from rayinfer.routing.first_tokens import NOTHING, FirstTokenCounts
from rayinfer_deployments.discovery.autoscaling_policy import (
    LOOK_BACK_S,
    REPORT_INTERVAL_S,
    STALE_AFTER_S,
    engine_report,
    latest_reports,
    load_of,
    serve_autoscaling,
)
from rayinfer_deployments.discovery.load_reports import FORGET_S, RouterLoads

DEPLOYMENT = DeploymentID(name="engine-0", app_name="rayinfer")
SETTINGS = AutoscalingSettings(
    min_replicas=0, max_replicas=3, target_waiting_tokens=100, upscale_delay_s=1, downscale_delay_s=5, idle_timeout_s=5
)


class Controller:
    """Serve's controller as far as it asks the policy: with Serve's own wrapper around it."""

    def __init__(self, settings):
        self.config = serve_autoscaling(settings)
        self.policy = _apply_autoscaling_config(_resolve_policy_callable(self.config.policy))
        self.target, self.state, self.now = self.config.initial_replicas, {}, 1000.0

    def context(self, reports, running, ongoing=0.0):
        raw = {}
        for number, report in enumerate(reports):
            replica = ReplicaID(f"r{number}", DEPLOYMENT)
            for name, value in report.items():
                raw.setdefault(name, {})[replica] = [
                    TimeStampedValue(self.now - 1, -1),
                    TimeStampedValue(self.now, value),
                ]
        return AutoscalingContext(
            deployment_id=DEPLOYMENT,
            deployment_name="engine-0",
            app_name="rayinfer",
            current_num_replicas=running,
            target_num_replicas=self.target,
            running_replicas=[],
            total_num_requests=ongoing,
            total_queued_requests=ongoing,
            aggregated_metrics=None,
            raw_metrics=raw,
            capacity_adjusted_min_replicas=self.config.min_replicas,
            capacity_adjusted_max_replicas=self.config.max_replicas,
            policy_state=self.state,
            last_scale_up_time=None,
            last_scale_down_time=None,
            current_time=self.now,
            config=self.config,
        )

    def go_on(self, seconds, report, ongoing=0.0):
        """Let time go by with every engine that is wanted running."""
        for _ in range(seconds * 10):
            context = self.context([report] * self.target, self.target, ongoing)
            self.target, self.state = self.policy(context)
            self.now += 0.1
        return self.target


def report(of_routers=NOTHING, **stats):
    return engine_report(EngineStats(kv_blocks_total=100, **stats), 8, of_routers)


def test_a_backlog_in_the_routers_brings_engines_and_idleness_takes_them_down_to_none():
    controller = Controller(SETTINGS)
    assert controller.target == 1
    assert controller.go_on(3, report(FirstTokenCounts(num_waiting=5, waiting_tokens=250))) == 3
    assert controller.go_on(4, report(num_running=1)) == 3
    assert controller.go_on(3, report(num_running=1)) == 1
    assert controller.go_on(7, report()) == 0
    assert controller.go_on(10, report()) == 0
    assert controller.go_on(1, report(), ongoing=0.2) == 1  # one call waits at Serve


def test_what_routers_say_where_there_is_no_engine_is_a_load():
    assert load_of([], 0, NOTHING._replace(num_waiting=7)).first_tokens.num_waiting == 7


def test_an_engine_that_starts_is_not_given_up():
    controller = Controller(SETTINGS)
    for _ in range(100):
        controller.target, controller.state = controller.policy(controller.context([], running=0))
        controller.now += 0.1
    assert controller.target == 1


def test_reports_are_sent_often_and_kept_shortly():
    config = serve_autoscaling(SETTINGS)
    assert (config.metrics_interval_s, config.look_back_period_s) == (REPORT_INTERVAL_S, LOOK_BACK_S)
    assert (config.upscale_delay_s, config.downscale_delay_s, config.downscale_to_zero_delay_s) == (0, 0, 0)


def test_engines_add_up_and_routers_are_counted_once():
    of_routers = FirstTokenCounts(num_waiting=3, waiting_tokens=40, num_started=2, num_late=1)
    reports = [report(of_routers, num_running=2, kv_blocks_used=50), report(num_running=4, kv_blocks_used=100)]
    assert load_of(reports, 2) == ModelLoad(
        num_engines=2, num_running=6, max_num_seqs=8, cache_usage=1.5, first_tokens=of_routers
    )


def test_a_load_without_every_engines_word_is_not_whole_and_one_that_sleeps_holds_everything():
    assert not load_of([report()], 2).is_complete
    assert load_of([], 1) == ModelLoad(num_engines=1, is_complete=False)
    assert load_of([report(), report(state="asleep")], 2).is_suspended


def test_the_last_report_counts_unless_it_is_old():
    controller = Controller(SETTINGS)
    context = controller.context([report(num_running=7)], running=1)
    assert [found["num_running"] for found in latest_reports(context)] == [7]
    context.current_time += STALE_AFTER_S + 1
    assert latest_reports(context) == []


def test_what_a_replica_reports_are_numbers_from_the_first_time_on():
    # Serve asks no more once it was given anything else.
    assert all(type(value) is float for value in engine_report(EngineStats(), 8, FirstTokenCounts()).values())


def test_a_router_that_is_silent_is_forgotten():
    now = 0.0
    loads = RouterLoads(lambda: now)
    loads.note("a", FirstTokenCounts(1, 10))
    loads.note("b", FirstTokenCounts(2, 20))
    now = FORGET_S - 1
    loads.note("b", FirstTokenCounts(3, 30))
    assert loads.total() == FirstTokenCounts(4, 40)
    now = FORGET_S + 1
    assert loads.total() == FirstTokenCounts(3, 30)
