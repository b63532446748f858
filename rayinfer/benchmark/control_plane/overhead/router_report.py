"""Report of `rayinfer bench router`."""

from dataclasses import dataclass, field
from enum import StrEnum

from rayinfer.benchmark.control_plane.overhead.routing_decision import DecisionCost
from rayinfer.benchmark.report import Environment, Percentiles, Table, describe_environment, format_figure

DECISION_HEADS = ("waiting", "engines", "arrival µs", "dispatch µs", "p50 µs", "p99 µs")
SERVICE_HEADS = (
    "profile",
    "variant",
    "added TTFT p50 ms",
    "p99 ms",
    "CPU µs/token",
    "runs",
    "tokens/chunk",
    "engine µs/token",
    "CPU µs/request",
)
ROLE_HEADS = ("profile", "variant", "process", "µs/token", "idle, % of a core")


class Variant(StrEnum):
    """Protocol of the streams, and whether the service asks for keys."""

    SSE = "sse"  # completions as server-sent events
    SSE_KEYS = "sse-keys"
    GRPC = "grpc"  # ModelStreamInfer
    GRPC_KEYS = "grpc-keys"

    @property
    def is_grpc(self) -> bool:
        """Whether clients stream over gRPC."""
        return self in (Variant.GRPC, Variant.GRPC_KEYS)

    @property
    def has_keys(self) -> bool:
        """Whether the service has keys with limits, counts their usage and logs requests."""
        return self in (Variant.SSE_KEYS, Variant.GRPC_KEYS)


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
    variant: str
    num_streams: int
    interval_ms: float
    input_len: int
    output_len: int
    added_ttft: Percentiles  # milliseconds, at one stream: the engine's first token comes at once
    cpu_us_per_request: float  # of the processes between engine and socket, at one stream, for requests of two tokens
    cpu_us_per_token: float  # of the same processes, at all streams, requests included: the median run
    cpu_us_per_token_runs: list[float]
    tok_s: float
    tokens_per_chunk: float | None  # of what clients read; above the stream interval where the service fell behind
    roles: list[RoleCost]

    def row(self) -> tuple[object, ...]:
        """Return a row below SERVICE_HEADS."""
        return (
            self.profile,
            self.variant,
            self.added_ttft.p50,
            self.added_ttft.p99,
            self.cpu_us_per_token,
            " ".join(map(format_figure, self.cpu_us_per_token_runs)),
            self.tokens_per_chunk,
            sum(cost.us_per_token for cost in self.roles if cost.role == "engine"),
            self.cpu_us_per_request,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterReport:
    """Costs of decisions and of services."""

    command: str
    decisions: list[DecisionCost]
    services: list[ServiceCost]
    environment: Environment = field(default_factory=describe_environment)

    def tables(self) -> list[Table]:
        """Return decisions, services and processes, as far as they were measured."""
        tables = []
        if self.decisions:
            rows = [
                (each.num_waiting, each.num_engines, each.arrival_us, each.dispatch_us, each.p50_us, each.p99_us)
                for each in self.decisions
            ]
            tables.append(Table("A routing decision, from a request's arrival to its submission", DECISION_HEADS, rows))
        if self.services:
            first = self.services[0]
            title = (
                f"Between engine and socket, {first.num_streams} streams, one token each {first.interval_ms:g} ms, "
                f"{first.output_len} tokens a request"
            )
            roles = [
                (cost.profile, cost.variant, role.role + "*" * role.is_between, role.us_per_token, role.idle_percent)
                for cost in self.services
                for role in cost.roles
            ]
            tables.append(Table(title, SERVICE_HEADS, [cost.row() for cost in self.services]))
            tables.append(Table("Process by process (* between engine and socket)", ROLE_HEADS, roles))
        return tables
