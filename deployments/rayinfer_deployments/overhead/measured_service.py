"""Measurement of a deployed service from outside: clients' latencies, and processor time of its processes."""

import asyncio
import itertools
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rayinfer.benchmark.control_plane.overhead.process_cpu import CpuSeconds, cpu_share, read_cpu_seconds, us_per_token
from rayinfer.benchmark.control_plane.overhead.router_report import RoleCost, ServiceCost, Variant
from rayinfer.benchmark.load.grpc_client import stream_infer_client
from rayinfer.benchmark.load.load_client import LoadPlan, ServingReport, completions_client, run_load
from rayinfer.errors import RayinferError
from rayinfer_deployments.cluster.process_tree import descendants
from rayinfer_deployments.cluster.ray_environment import Profile
from rayinfer_deployments.operations.process_listing import identify, read_actors
from rayinfer_deployments.overhead.paced_service import MODEL, PacedService, ServicePlan, paced_services

ENGINE, OTHER = "engine", "other"
BETWEEN = ("router", "proxy", "haproxy")  # roles between engine and socket
NUM_WARM_UPS = 20
SHORT_OUTPUT = 2  # tokens: one at once, one at the next tick

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Load:
    """Result of one load, and the processor time of each process meanwhile."""

    report: ServingReport
    shares: Mapping[int, float]  # of a core, by process

    @property
    def tok_s(self) -> float:
        """Return the tokens per second of all streams."""
        return self.report.out_tok_s


def measure_service(profile: Profile, plan: ServicePlan, log: Log) -> list[ServiceCost]:
    """Start the services that a plan's variants need, measure them in turns and stop them.

    Ray's settings must be in the environment.
    """
    log(f"{profile}: starting")
    with paced_services(profile, plan) as services:
        measured = [_Measurement(plan, variant, service) for variant, service in services.items()]
        for each in measured:
            log(f"{profile}, {each.variant}: first tokens at one stream")
            each.measure_first_tokens()
        for number, each in itertools.product(range(plan.num_runs), measured):
            log(f"{profile}, {each.variant}: {plan.num_streams} streams, run {number + 1} of {plan.num_runs}")
            each.measure_streams()
        return [each.cost(profile) for each in measured]


class _Measurement:
    """Measurement of one variant: its service's processes, and what they took."""

    def __init__(self, plan: ServicePlan, variant: Variant, service: PacedService) -> None:
        self.variant = variant
        self._plan = plan
        self._service = service
        self._roles: dict[int, str] = {}
        self._idle: Mapping[int, float] = {}
        self._alone: _Load | None = None
        self._runs: list[_Load] = []

    def measure_first_tokens(self) -> None:
        """Measure one stream after the other, and first the processes without any."""
        self._load(1, NUM_WARM_UPS, SHORT_OUTPUT)  # warm-up
        self._idle = self._measure_idle()
        self._alone = self._load(1, self._plan.num_first_tokens, SHORT_OUTPUT)

    def measure_streams(self) -> None:
        """Measure all streams at once."""
        plan = self._plan
        self._runs.append(self._load(plan.num_streams, plan.num_streams * plan.requests_per_stream, plan.output_len))

    def cost(self, profile: str) -> ServiceCost:
        """Return the result."""
        plan, idle, alone = self._plan, self._idle, self._alone
        costs = [us_per_token(self._pids(*BETWEEN), run.shares, idle, run.tok_s) for run in self._runs]
        median = self._runs[costs.index(statistics.median_low(costs))]
        assert alone is not None
        assert alone.report.ttft is not None
        return ServiceCost(
            profile=profile,
            variant=self.variant,
            num_streams=plan.num_streams,
            interval_ms=1e3 * plan.interval_s,
            input_len=plan.input_len,
            output_len=plan.output_len,
            added_ttft=alone.report.ttft,
            cpu_us_per_request=us_per_token(self._pids(*BETWEEN), alone.shares, idle, alone.tok_s / SHORT_OUTPUT),
            cpu_us_per_token=statistics.median_low(costs),
            cpu_us_per_token_runs=costs,
            tok_s=round(median.tok_s, 1),
            tokens_per_chunk=median.report.tokens_per_chunk,
            roles=[self._role_cost(role, median, idle) for role in (*BETWEEN, ENGINE, OTHER) if self._pids(role)],
        )

    def _role_cost(self, role: str, run: _Load, idle: Mapping[int, float]) -> RoleCost:
        pids = self._pids(role)
        return RoleCost(
            role=role,
            is_between=role in BETWEEN,
            num_processes=len(pids),
            us_per_token=us_per_token(pids, run.shares, idle, run.tok_s),
            idle_percent=round(100 * sum(idle.get(pid, 0.0) for pid in pids), 2),
        )

    def _pids(self, *roles: str) -> list[int]:
        return [pid for pid, role in self._roles.items() if role in roles]

    def _measure_idle(self) -> Mapping[int, float]:
        self._roles = _find_roles(self._service)
        before = self._cpu()
        time.sleep(self._plan.idle_s)
        return cpu_share(before, self._cpu(), self._plan.idle_s)

    def _load(self, concurrency: int, num_requests: int, output_len: int) -> _Load:
        plan = LoadPlan(
            base_url=self._service.grpc_address if self.variant.is_grpc else self._service.url,
            model=MODEL,
            num_requests=num_requests,
            input_len=self._plan.input_len,
            output_len=output_len,
            concurrency=concurrency,
            vocab_size=self._service.vocab_size,
            api_key=self._service.api_key,
        )
        # HAProxy starts another process when its routers change.
        self._roles = _find_roles(self._service)
        before: list[CpuSeconds] = []
        open_client = stream_infer_client if self.variant.is_grpc else completions_client
        report = asyncio.run(run_load(plan, on_start=lambda: before.append(self._cpu()), open_client=open_client))
        if report.failed:
            raise RayinferError(f"{report.failed} of {num_requests} requests failed: {next(iter(report.errors))}")
        return _Load(report, cpu_share(before[0], self._cpu(), report.secs))

    def _cpu(self) -> CpuSeconds:
        return read_cpu_seconds(self._roles)


def _find_roles(service: PacedService) -> dict[int, str]:
    """Return the role of each process below this one; those of other services are OTHER."""
    found = identify(read_actors(service.ray_address), service.application, {})
    known = {process.pid: process.role for process in found}
    roles: dict[int, str] = {}
    for process in descendants(os.getpid()):
        is_haproxy = "haproxy" in process.title.partition(" ")[0]
        role = "haproxy" if is_haproxy else known.get(process.pid, OTHER)
        roles[process.pid] = role if role in (*BETWEEN, ENGINE) else OTHER
    return roles
