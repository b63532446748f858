"""Measurement of a deployed service from outside: clients' latencies, and processor time of its processes."""

import asyncio
import contextlib
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from rayinfer.benchmark.control_plane.overhead.paced_engine import paced_description, printable_token_ids
from rayinfer.benchmark.control_plane.overhead.process_cpu import CpuSeconds, cpu_share, read_cpu_seconds, us_per_token
from rayinfer.benchmark.control_plane.overhead.router_report import RoleCost, ServiceCost
from rayinfer.benchmark.load.load_client import LoadPlan, ServingReport, run_load
from rayinfer.errors import RayinferError
from rayinfer.models.checkpoints.sources import resolve_model
from rayinfer.tokenization.tokenizer import Tokenizer
from rayinfer_deployments.app_args import llm_app_args
from rayinfer_deployments.applications import build_app_over
from rayinfer_deployments.cluster.managed_cluster import ManagedCluster
from rayinfer_deployments.cluster.process_priority import deprioritize_control_plane
from rayinfer_deployments.cluster.process_tree import descendants
from rayinfer_deployments.cluster.ray_environment import Profile
from rayinfer_deployments.cluster.service_record import service_url
from rayinfer_deployments.operations.process_listing import identify, read_actors
from rayinfer_deployments.operations.service_startup import deploy, wait_until_ready
from rayinfer_deployments.overhead.paced_replica import Pace, paced_engines

APPLICATION = "rayinfer"
HOST = "127.0.0.1"
MODEL = "paced"
ENGINE, OTHER = "engine", "other"
BETWEEN = ("router", "proxy", "haproxy")  # roles between engine and socket
NUM_WARM_UPS = 20
SHORT_OUTPUT = 2  # tokens: one at once, one at the next tick

Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServicePlan:
    """Settings of one measurement."""

    model: str  # its tokenizer makes the text
    with_proxy: bool  # whether clients come through Serve's proxies
    stream_interval: int | None = None  # tokens sent at once; None: as the profile has it
    num_streams: int = 32
    interval_s: float = 0.02
    input_len: int = 128
    output_len: int = 256
    requests_per_stream: int = 2
    num_first_tokens: int = 200  # requests sent one after the other
    num_runs: int = 3
    idle_s: float = 5.0


@dataclass(frozen=True, slots=True)
class _Load:
    """Result of one load, and the processor time of each process meanwhile."""

    report: ServingReport
    shares: Mapping[int, float]  # of a core, by process

    @property
    def tok_s(self) -> float:
        """Return the tokens per second of all streams."""
        return self.report.out_tok_s


def measure_service(profile: Profile, plan: ServicePlan, log: Log) -> ServiceCost:
    """Start a service on a Ray of its own, measure it and stop it; Ray's settings must be in the environment."""
    log(f"{profile}: starting the service")
    with paced_service(profile, plan) as service:
        return _Service(plan, service).measure(profile, log)


@dataclass(frozen=True, slots=True)
class PacedService:
    """A running service over engines without a model."""

    url: str
    ray_address: str
    vocab_size: int


@contextlib.contextmanager
def paced_service(profile: Profile, plan: ServicePlan) -> Iterator[PacedService]:
    """Start a service on a Ray of its own, and stop it; Ray's settings must be in the environment."""
    tokenizer, port = Tokenizer.from_folder(resolve_model(plan.model)), _free_port()
    pace = Pace(
        description=paced_description(MODEL, tokenizer),
        token_ids=printable_token_ids(tokenizer),
        interval_s=plan.interval_s,
        max_running=4 * plan.num_streams,
    )
    listen = {} if plan.with_proxy else {"listen_host": HOST, "listen_port": port}
    interval = {} if plan.stream_interval is None else {"stream_interval": plan.stream_interval}
    limits = profile.limits | interval
    args = llm_app_args({"models": [{"name": MODEL, "model": plan.model}], "limits": limits, **listen})
    with ManagedCluster() as ray:
        deploy(build_app_over(paced_engines(pace), args), APPLICATION, HOST, port, with_proxy=plan.with_proxy)
        wait_until_ready(APPLICATION, HOST, port, check=ray.check, on_progress=lambda reason: None)
        deprioritize_control_plane(os.getpid(), APPLICATION)
        yield PacedService(service_url(HOST, port), ray.address, tokenizer.vocab_size)


class _Service:
    """A running service and its processes."""

    def __init__(self, plan: ServicePlan, service: PacedService) -> None:
        self._plan = plan
        self._service = service
        self._roles: dict[int, str] = {}

    def measure(self, profile: str, log: Log) -> ServiceCost:
        plan = self._plan
        log(f"{profile}: first tokens at one stream")
        self._load(1, NUM_WARM_UPS, SHORT_OUTPUT)  # warm-up
        idle = self._idle()
        alone = self._load(1, plan.num_first_tokens, SHORT_OUTPUT)
        runs = []
        for number in range(plan.num_runs):
            log(f"{profile}: {plan.num_streams} streams, run {number + 1} of {plan.num_runs}")
            num_requests = plan.num_streams * plan.requests_per_stream
            runs.append(self._load(plan.num_streams, num_requests, plan.output_len))
        costs = [us_per_token(self._pids(*BETWEEN), run.shares, idle, run.tok_s) for run in runs]
        median = runs[costs.index(statistics.median_low(costs))]
        assert alone.report.ttft is not None
        return ServiceCost(
            profile=profile,
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

    def _idle(self) -> Mapping[int, float]:
        self._roles = _find_roles(self._service.ray_address)
        before = self._cpu()
        time.sleep(self._plan.idle_s)
        return cpu_share(before, self._cpu(), self._plan.idle_s)

    def _load(self, concurrency: int, num_requests: int, output_len: int) -> _Load:
        plan = LoadPlan(
            base_url=self._service.url,
            model=MODEL,
            num_requests=num_requests,
            input_len=self._plan.input_len,
            output_len=output_len,
            concurrency=concurrency,
            vocab_size=self._service.vocab_size,
        )
        # HAProxy starts another process when its routers change.
        self._roles = _find_roles(self._service.ray_address)
        before: list[CpuSeconds] = []
        report = asyncio.run(run_load(plan, on_start=lambda: before.append(self._cpu())))
        if report.failed:
            raise RayinferError(f"{report.failed} of {num_requests} requests failed: {next(iter(report.errors))}")
        return _Load(report, cpu_share(before[0], self._cpu(), report.secs))

    def _cpu(self) -> CpuSeconds:
        return read_cpu_seconds(self._roles)


def _find_roles(ray_address: str) -> dict[int, str]:
    """Return the role of each process below this one."""
    known = {process.pid: process.role for process in identify(read_actors(ray_address), APPLICATION, {})}
    roles: dict[int, str] = {}
    for process in descendants(os.getpid()):
        is_haproxy = "haproxy" in process.title.partition(" ")[0]
        role = "haproxy" if is_haproxy else known.get(process.pid, OTHER)
        roles[process.pid] = role if role in (*BETWEEN, ENGINE) else OTHER
    return roles


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
