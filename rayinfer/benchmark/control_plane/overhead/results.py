"""Results of `rayinfer bench router`, as JSON, Markdown and tables."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rayinfer.benchmark.control_plane.overhead.routing_decision import DecisionCost
from rayinfer.benchmark.load.report import Environment, Percentiles, describe_environment, format_figure

DECISION_HEADS = ("waiting", "engines", "arrival µs", "dispatch µs", "p50 µs", "p99 µs")
SERVICE_HEADS = (
    "profile",
    "added TTFT p50 ms",
    "p99 ms",
    "CPU µs/token",
    "runs",
    "tokens/chunk",
    "engine µs/token",
    "CPU µs/request",
)
ROLE_HEADS = ("profile", "process", "µs/token", "idle, % of a core")


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleCost:
    """Processor time of the processes of one role."""

    role: str
    is_between: bool  # engine and socket
    num_processes: int
    us_per_token: float  # beyond what they take when idle, in the median run
    idle_percent: float  # of one core


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceCost:
    """Control-plane overhead between engines and clients in one profile of the service."""

    profile: str
    num_streams: int
    interval_ms: float
    input_len: int
    output_len: int
    added_ttft: Percentiles  # milliseconds, at one stream: the engine's first token comes at once
    cpu_us_per_request: float  # of the processes between engine and socket, at one stream, for requests of two tokens
    cpu_us_per_token: float  # of the same processes, at all streams, requests included: the median run
    cpu_us_per_token_runs: list[float]
    tok_s: float
    tokens_per_chunk: float | None  # of what clients read; more than the service was told to, where it fell behind
    roles: list[RoleCost]

    @property
    def engine_us_per_token(self) -> float:
        """Return the engine process's time to send its tokens."""
        return sum(cost.us_per_token for cost in self.roles if cost.role == "engine")


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterReport:
    """The whole result."""

    command: str
    decisions: list[DecisionCost]
    services: list[ServiceCost]
    environment: Environment = field(default_factory=describe_environment)


def print_router_report(report: RouterReport, console: Console) -> None:
    """Show the tables."""
    for title, heads, rows in _tables(report):
        console.print(title, style="bold", markup=False, highlight=False, soft_wrap=True)
        table = Table(*heads)
        for row in rows:
            table.add_row(*map(format_figure, row))
        console.print(table)


def write_markdown(report: RouterReport, path: Path) -> None:
    """Write the tables for people to read."""
    lines = ["# What the router costs", ""]
    for title, heads, rows in _tables(report):
        lines += [title, "", _row(heads), _row(["---"] * len(heads)), *map(_row, rows), ""]
    environment = report.environment
    versions = ", ".join(f"{name} {version}" for name, version in environment.versions.items())
    lines += [f"{environment.cpu_model}, {environment.num_cpus} CPUs; {versions}; commit {environment.commit}."]
    lines += ["", f"`{report.command}`"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


Rows = list[Sequence[object]]


def _tables(report: RouterReport) -> Iterable[tuple[str, Sequence[str], Rows]]:
    if report.decisions:
        yield "A routing decision, from a request's arrival to its submission", DECISION_HEADS, _decision_rows(report)
    if report.services:
        cost = report.services[0]
        title = (
            f"{cost.num_streams} streams, one token each {cost.interval_ms:g} ms, {cost.output_len} tokens a request"
        )
        yield f"Between engine and socket, {title}", SERVICE_HEADS, _service_rows(report)
        yield "Process by process (* between engine and socket)", ROLE_HEADS, _role_rows(report)


def _decision_rows(report: RouterReport) -> Rows:
    return [
        (cost.num_waiting, cost.num_engines, cost.arrival_us, cost.dispatch_us, cost.p50_us, cost.p99_us)
        for cost in report.decisions
    ]


def _service_rows(report: RouterReport) -> Rows:
    return [
        (
            cost.profile,
            cost.added_ttft.p50,
            cost.added_ttft.p99,
            cost.cpu_us_per_token,
            " ".join(map(format_figure, cost.cpu_us_per_token_runs)),
            cost.tokens_per_chunk,
            cost.engine_us_per_token,
            cost.cpu_us_per_request,
        )
        for cost in report.services
    ]


def _role_rows(report: RouterReport) -> Rows:
    return [
        (cost.profile, role.role + ("*" if role.is_between else ""), role.us_per_token, role.idle_percent)
        for cost in report.services
        for role in cost.roles
    ]


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(format_figure, cells))} |"
