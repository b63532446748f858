"""The Serve replica behind one engine: starts, monitors, reports and drains it; no token passes through."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

import ray
from ray import serve
from ray.exceptions import RayActorError, RayTaskError

from rayinfer.config import EngineConfig
from rayinfer.errors import EngineDead, EngineLeaving, RayinferError
from rayinfer.liveness import DEFAULT_LIMITS, LivenessLimits, TickWatch
from rayinfer.outputs import EngineStats
from rayinfer.routing.first_tokens import FirstTokenCounts
from rayinfer_deployments.cluster.cluster_nodes import draining_nodes
from rayinfer_deployments.cluster.ray_failures import cause_in_one_line, cause_of
from rayinfer_deployments.discovery.autoscaling_policy import engine_report
from rayinfer_deployments.discovery.engine_address import ENGINE_PREFIX, EngineAddress
from rayinfer_deployments.discovery.engine_report import EngineReport
from rayinfer_deployments.discovery.load_reports import RouterLoads
from rayinfer_deployments.engine.engine_ranks import EngineGroup, EngineResources, create_engine_group

EngineGroupFactory = Callable[[EngineAddress, EngineConfig, EngineResources, int], EngineGroup]
SERVE_NAMESPACE = "serve"  # where Serve keeps its own actors, and we our engines

logger = logging.getLogger("ray.serve")


class EngineReplica:
    """Owner of the processes of one engine from their start to their end."""

    async def __init__(  # type: ignore[misc] # Serve awaits it
        self,
        config: EngineConfig,
        num_processes: int,
        resources: EngineResources,
        drain_timeout_s: float,
        limits: LivenessLimits = DEFAULT_LIMITS,
        create_group: EngineGroupFactory = create_engine_group,
        find_draining: Callable[[], set[str]] = draining_nodes,
    ) -> None:
        self._drain_timeout_s = drain_timeout_s
        self._watching: list[asyncio.Task[None]] = []  # empty until the engine has started
        self._stats = EngineStats()
        self._weights_version = config.weights_version
        self._router_loads = RouterLoads()
        self._limits = limits
        self._report_watch = TickWatch(limits.report_interval_s)
        self._stalled_s = 0.0  # as of the latest report
        self._stall_limit_s = limits.max_stall_s
        self._failure: str | None = None
        self._is_leaving = False
        self._address = EngineAddress(
            actor_name=f"{ENGINE_PREFIX}{serve.get_replica_context().replica_tag}",
            namespace=SERVE_NAMESPACE,
        )
        num_on_node = _processes_on_node(num_processes, resources.placement().most_on_one_node)
        self._group = create_group(self._address, config, resources, num_on_node)
        self._actor = self._group.first
        try:
            description = await self._group.start()
        except (RayTaskError, RayActorError, EngineDead) as error:
            self._group.kill()
            raise _start_failure(error, config.model) from None
        self._max_num_seqs = description.max_num_seqs  # the settings may leave it to the engine's device
        loop = asyncio.get_running_loop()
        self._watching.append(loop.create_task(self._watch()))
        if self._group.others:
            self._watching.append(loop.create_task(self._watch_group()))
        if self._group.other_nodes:
            self._watching.append(loop.create_task(self._watch_nodes(find_draining)))

    def record_replica_metadata(self) -> dict[str, object]:
        """Publish the engine's address to routers."""
        return self._address.to_metadata()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Report the engine's load and the routers' queues to Serve."""
        return engine_report(self._stats, self._max_num_seqs, self._router_loads.total())

    async def note_router_load(self, router: str, counts: tuple[int, ...]) -> None:
        """Record a router's queue, as FirstTokenCounts."""
        self._router_loads.note(router, FirstTokenCounts(*counts))

    async def weights(self) -> tuple[str, int]:
        """Return the engine's name and the version of its weights."""
        return self._address.actor_name, self._weights_version

    async def leave(self, engine: str) -> bool:
        """Fail health checks from now on if `engine` is this replica's: Serve replaces it; returns whether it is."""
        is_meant = engine == self._address.actor_name
        self._is_leaving |= is_meant
        return is_meant

    async def check_health(self) -> None:
        """Raise when the engine is dead, leaving, or stuck in a step; Serve then starts a new one."""
        if self._is_leaving:
            # Serve offers no way to stop a given replica, but stops those that report themselves unhealthy.
            raise EngineLeaving(f"engine {self._address.actor_name} is being replaced")
        if self._failure is not None:
            raise EngineDead(self._failure)
        stalled_s = self._stalled_s + self._report_watch.silent_s
        if stalled_s > self._stall_limit_s:
            raise EngineDead(f"the engine's loop has stalled for {stalled_s:.0f} s")

    async def __del__(self) -> None:
        """Drain the engine within the grace period, and end its processes."""
        if not self._watching:
            return  # it never started, and __init__ has cleaned up
        for watching in self._watching:
            watching.cancel()
        try:
            with contextlib.suppress(RayActorError, RayTaskError, TimeoutError):
                async with asyncio.timeout(self._drain_timeout_s):
                    await self._actor.drain.remote()
                    await self._actor.shutdown.remote()
        finally:
            self._group.kill()

    async def _watch(self) -> None:
        """Poll the engine's report; a dead or hung process fails at once, a stuck step in `check_health`."""
        while self._failure is None:
            try:
                self._record(await self._next_report())
            except (RayActorError, RayTaskError) as error:
                self._failure = f"engine {self._address.actor_name} has died: {cause_in_one_line(error)}"
                logger.error(self._failure)
            except TimeoutError:
                silent_s = self._report_watch.silent_s
                self._failure = f"engine {self._address.actor_name} has not answered for {silent_s:.0f} s"
                logger.error(self._failure)
            await asyncio.sleep(self._limits.report_interval_s)

    async def _next_report(self) -> EngineReport:
        """Wait for a report in ticks of this loop; raises TimeoutError."""
        reporting: asyncio.Future[EngineReport] = asyncio.ensure_future(self._actor.report.remote())
        try:
            while not self._report_watch.has_missed(self._limits.report_timeout_s):
                done, _ = await asyncio.wait((reporting,), timeout=self._limits.report_interval_s)
                if done:
                    return reporting.result()
                self._report_watch.tick()
        finally:
            reporting.cancel()
        raise TimeoutError

    def _record(self, report: EngineReport) -> None:
        self._report_watch.reset()
        self._stats = report.stats
        self._stalled_s = report.stalled_s
        self._stall_limit_s = min(self._limits.max_stall_s, report.stall_limit_s + self._limits.stall_grace_s)

    async def _watch_group(self) -> None:
        """Kill every process of the engine as soon as a rank beyond the first is lost: the others would wait for it."""
        loss = await self._group.first_loss()
        self._failure = self._failure or loss
        logger.error(loss)
        self._group.kill()

    async def _watch_nodes(self, find_draining: Callable[[], set[str]]) -> None:
        """Leave once a node of another rank is to go: Serve looks at the nodes of replicas alone."""
        while not self._is_leaving:
            await asyncio.sleep(self._limits.node_poll_s)
            with contextlib.suppress(Exception):  # Ray's table may be restarting
                leaving = self._group.other_nodes & await asyncio.to_thread(find_draining)
                if leaving:
                    logger.info("engine %s leaves: node %s is draining", self._address.actor_name, min(leaving)[:12])
                    self._is_leaving = True


def _processes_on_node(num_processes: int, num_ranks: int) -> int:
    """Compute how many engine processes share a node's cores, with engines spread evenly.

    `num_ranks` is the number of this engine's ranks on the node that has most of them.
    """
    num_nodes = max(1, sum(bool(node["Alive"]) for node in ray.nodes()))
    return max(num_ranks, -(-num_processes // num_nodes))


def _start_failure(error: BaseException, model: str) -> Exception:
    """Make the error that an operator sees: our own as it is, EngineDead for a crash, whose cause logs may hold."""
    cause = cause_of(error)
    if isinstance(cause, RayinferError):
        return cause
    return EngineDead(f"the engine for model {model!r} could not start: {cause_in_one_line(error)}")
