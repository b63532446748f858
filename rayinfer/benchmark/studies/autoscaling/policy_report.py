"""Comparison of autoscaling policies over several traces, and its report."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rayinfer.benchmark.report import Environment, Table, describe_environment
from rayinfer.benchmark.studies.autoscaling.policies import (
    ByEngineMetrics,
    ByOngoingRequests,
    CountingPolicy,
    FixedCount,
)
from rayinfer.benchmark.studies.autoscaling.simulated_engine import EnginePace
from rayinfer.benchmark.studies.autoscaling.simulation import (
    CLIENT_TIMEOUT_S,
    LOAD_DELAY_S,
    MAX_WAITING,
    Replay,
    Simulation,
)
from rayinfer.benchmark.studies.autoscaling.trace import TracedRequest
from rayinfer.routing.autoscaling_settings import AutoscalingSettings

OWN = "engine metrics"
IDLE_TIMEOUT_S = 300.0
TO_NONE = f"{OWN}, to none"
PLAIN_TARGETS = (2.0, 8.0, 16.0, 32.0)  # ongoing requests per engine; the first is Serve's default
HEADS = ("trace", "policy", "lost", "in time", "TTFT p50 s", "p99 s", "engine-hours", "most", "starts")
TAIL_S = 300.0  # after the last request


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyOutcome:
    """Result of one policy on one trace."""

    trace: str
    policy: str
    num_requests: int
    num_refused: int
    num_given_up: int
    attainment: float
    ttft_p50_s: float
    ttft_p99_s: float
    engine_hours: float
    most_engines: int
    num_started: int
    seconds: int  # that were simulated
    engines: str  # held: "0:1 35:2" stands for one, and two from the 35th second on

    def counts(self) -> list[int]:
        """Return the engines held, second by second."""
        changes = [tuple(map(int, change.split(":"))) for change in self.engines.split()]
        ends = [second for second, _ in changes[1:]] + [self.seconds]
        return [count for (second, count), end in zip(changes, ends, strict=True) for _ in range(second, end)]

    def row(self) -> tuple[object, ...]:
        """Return a row below HEADS."""
        return (
            self.trace,
            self.policy,
            self.num_refused + self.num_given_up,
            f"{self.attainment:.1%}",
            self.ttft_p50_s,
            self.ttft_p99_s,
            f"{self.engine_hours:.2f}",
            self.most_engines,
            self.num_started,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AutoscalingReport:
    """All outcomes, with the settings of the simulation."""

    command: str
    pace: EnginePace
    settings: dict[str, Any]  # AutoscalingSettings
    outcomes: list[PolicyOutcome]
    environment: Environment = field(default_factory=describe_environment)

    def tables(self) -> list[Table]:
        """Return all outcomes, with the conditions of the simulation as title."""
        pace, settings = self.pace, self.settings
        title = (
            f"Simulated engines: {1 / pace.prompt_token_s:,.0f} prompt tokens a second, a step of "
            f"{1e3 * pace.step_s:g} ms and {1e3 * pace.output_token_s:g} ms for each of at most {pace.max_num_seqs} "
            f"requests, {pace.start_s:g} s to start; {settings['min_replicas']} to {settings['max_replicas']} engines. "
            f"In time: first token within {settings['ttft_objective_s']:g} s. "
            f"Lost: rejected by a queue of {MAX_WAITING} (without an engine: for each of {settings['max_replicas']}), "
            f"or no token within {CLIENT_TIMEOUT_S:g} s. "
            f"Policies see the load as it was {LOAD_DELAY_S:g} s ago. "
            f"To none: the last engine stops after {IDLE_TIMEOUT_S:g} s without a request."
        )
        return [Table(title, HEADS, [outcome.row() for outcome in self.outcomes])]


def run_autoscaling_benchmark(
    traces: Mapping[str, Sequence[TracedRequest]],
    pace: EnginePace,
    settings: AutoscalingSettings,
    *,
    command: str,
    on_part: Callable[[str], None] = lambda _: None,
) -> AutoscalingReport:
    """Replay every trace under every policy; deterministic."""
    outcomes = []
    for trace, requests in traces.items():
        for name, policy in _policies(settings).items():
            on_part(f"{trace}: {name}")
            initial = policy.num_engines if isinstance(policy, FixedCount) else settings.first_replicas
            simulation = Simulation(
                requests,
                policy,
                pace,
                objective_s=settings.ttft_objective_s,
                most_engines=settings.max_replicas,
            )
            replay = simulation.run(initial=initial, tail_s=TAIL_S)
            outcomes.append(_outcome(trace, name, replay, settings.ttft_objective_s))
    return AutoscalingReport(command=command, pace=pace, settings=settings.model_dump(), outcomes=outcomes)


def _policies(settings: AutoscalingSettings) -> dict[str, CountingPolicy]:
    most, fewest = settings.max_replicas, settings.min_replicas
    quick = settings.model_copy(update={"downscale_delay_s": settings.downscale_delay_s / 2})
    policies: dict[str, CountingPolicy] = {f"always {number}": FixedCount(num_engines=number) for number in (4, most)}
    for target in PLAIN_TARGETS:
        policies[f"ongoing requests, {target:g} each"] = ByOngoingRequests(
            min_replicas=fewest, max_replicas=most, target_ongoing_requests=target
        )
    policies["ongoing requests, 16 each, our delays"] = ByOngoingRequests(
        min_replicas=fewest,
        max_replicas=most,
        target_ongoing_requests=16.0,
        look_back_s=5.0,
        upscale_delay_s=settings.upscale_delay_s,
        downscale_delay_s=settings.downscale_delay_s,
    )
    policies[OWN] = ByEngineMetrics(settings)
    to_none = settings.model_copy(update={"min_replicas": 0, "idle_timeout_s": IDLE_TIMEOUT_S})
    policies[TO_NONE] = ByEngineMetrics(to_none)
    policies[f"{OWN}, down after {quick.downscale_delay_s:g} s"] = ByEngineMetrics(quick)
    return policies


def _outcome(trace: str, policy: str, replay: Replay, objective_s: float) -> PolicyOutcome:
    return PolicyOutcome(
        trace=trace,
        policy=policy,
        num_requests=replay.num_requests,
        num_refused=replay.num_refused,
        num_given_up=replay.num_given_up,
        attainment=round(replay.attainment(objective_s), 4),
        ttft_p50_s=round(replay.quantile_s(0.5), 3),
        ttft_p99_s=round(replay.quantile_s(0.99), 3),
        engine_hours=round(replay.engine_s / 3600, 3),
        most_engines=max(replay.counts),
        num_started=replay.num_started,
        seconds=len(replay.counts),
        engines=_changes(replay.counts),
    )


def _changes(counts: Sequence[int]) -> str:
    before = [None, *counts]
    return " ".join(f"{second}:{count}" for second, count in enumerate(counts) if count != before[second])
