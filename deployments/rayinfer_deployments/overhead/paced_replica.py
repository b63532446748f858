"""Engines without a model behind a real router: an actor, the replica that owns it, and their deployment."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ray
from ray import serve
from ray.serve import Application

from rayinfer.benchmark.control_plane.overhead.paced_engine import AlwaysRunning, PacedEngine
from rayinfer.protocols import ModelDescription
from rayinfer.transport.engine_server import TransportAddress
from rayinfer_deployments.app_args import ModelArgs
from rayinfer_deployments.cluster.transport_tls import make_engine_server
from rayinfer_deployments.discovery.addressed_request_router import addressed_routing
from rayinfer_deployments.discovery.engine_address import EngineAddress
from rayinfer_deployments.discovery.engine_report import EngineReport
from rayinfer_deployments.engine.engine_actor import MAX_CONCURRENT_CALLS
from rayinfer_deployments.engine.engine_replica import SERVE_NAMESPACE

NUM_CPUS = 0.05  # of the replica and of the engine


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """Output tokens and token interval of engines without a model."""

    description: ModelDescription
    token_ids: Sequence[int]
    interval_s: float  # between two tokens of a stream
    max_running: int

    def engine(self) -> PacedEngine:
        """Make an engine of this pace."""
        return PacedEngine(self.description, self.token_ids, interval_s=self.interval_s, max_running=self.max_running)


class PacedActor(AlwaysRunning):
    """Actor process of such an engine, with the interface of EngineActor."""

    def __init__(self, pace: Pace) -> None:
        self._engine = pace.engine()
        self._address: TransportAddress | None = None

    async def describe(self) -> ModelDescription:
        """Return the model's description."""
        return self._engine.description

    async def report(self) -> EngineReport:
        """Return a report without a step in flight: steps take no time."""
        return EngineReport(stats=self._engine.stats, stalled_s=0.0, stall_limit_s=math.inf)

    async def line(self) -> TransportAddress:
        """Return the address at which the engine listens for routers."""
        if self._address is None:
            host = ray.util.get_node_ip_address()
            self._address = await make_engine_server(self._engine, host).start(host)
        return self._address


class PacedReplica:
    """Serve replica that owns such a process and publishes its address to routers."""

    async def __init__(self, pace: Pace) -> None:  # type: ignore[misc] # Serve awaits it
        self._address = EngineAddress(
            actor_name=f"rayinfer-engine-{serve.get_replica_context().replica_tag}",
            namespace=SERVE_NAMESPACE,
        )
        self._actor = (
            ray.remote(PacedActor)
            .options(
                name=self._address.actor_name,
                namespace=self._address.namespace,
                num_cpus=NUM_CPUS,
                max_concurrency=MAX_CONCURRENT_CALLS,
            )
            .remote(pace)
        )
        await self._actor.describe.remote()

    def record_replica_metadata(self) -> dict[str, object]:
        """Publish the engine's address to routers."""
        return self._address.to_metadata()

    def __del__(self) -> None:
        """End the engine's process."""
        ray.kill(self._actor)


def paced_engines(pace: Pace) -> Callable[[int, ModelArgs, int], Application]:
    """Make the factory of engine deployments for `build_app_over`."""

    def make_engines(index: int, model: ModelArgs, num_engines: int) -> Application:
        return (
            serve.deployment(PacedReplica)
            .options(
                name=f"engine-{index}",
                num_replicas=model.num_replicas,
                ray_actor_options={"num_cpus": NUM_CPUS},
                placement_group_bundles=[{"CPU": 2 * NUM_CPUS}],
                placement_group_strategy="STRICT_PACK",
                request_router_config=addressed_routing(),
            )
            .bind(pace)
        )

    return make_engines
