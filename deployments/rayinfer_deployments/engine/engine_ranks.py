"""Processes of one engine: rank 0 schedules, every other rank holds a further part of the model.

They start and end together: a group that has lost a rank can compute nothing, so all its processes are killed and
Serve starts another. Nothing passes through Ray while they compute; see `rayinfer/engine/README.md`.
"""

import asyncio
import importlib
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rayinfer.config import EngineConfig
from rayinfer.errors import EngineDead
from rayinfer.liveness import DEFAULT_LIMITS, LivenessLimits, TickWatch, is_stopped
from rayinfer.protocols import ModelDescription
from rayinfer_deployments.cluster.actor_processes import ActorProcess, process_of
from rayinfer_deployments.cluster.ray_environment import use_interface_of
from rayinfer_deployments.cluster.ray_failures import cause_in_one_line, cause_of
from rayinfer_deployments.discovery.engine_address import EngineAddress, RankName
from rayinfer_deployments.engine.engine_actor import ENGINE_BUILDING, MAX_CONCURRENT_CALLS, EngineActor, see_own_gpus
from rayinfer_deployments.engine.rank_placement import ONE_NODE, PlacementStrategy, RankPlacement, current_placement
from rayinfer_deployments.engine.start_reports import reports_path, written_steps

if TYPE_CHECKING:
    from rayinfer.engine.ranks.rendezvous import Rendezvous

OWN_ERROR, PROCESS_DIED, CONSEQUENCE = range(3)  # a rank's failure, the best explanation first


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineResources:
    """Number of processes of an engine, the resources that Ray reserves for each, and how they are placed."""

    num_ranks: int = 1
    num_cpus: float
    num_gpus: float
    strategy: PlacementStrategy = ONE_NODE
    ranks_per_bundle: int = 1

    def placement(self) -> RankPlacement:
        """Return where the ranks of this replica's engine lie; asks Ray only if they may lie on several nodes."""
        return current_placement(self.strategy, self.num_ranks, self.ranks_per_bundle)


class RankActor:
    """A rank's worker process; the replica makes it a Ray actor, which it owns."""

    def __init__(self, config: EngineConfig, num_processes_on_node: int, rank: int) -> None:
        see_own_gpus()
        self._config = config
        self._num_processes_on_node = num_processes_on_node
        self._rank = rank
        # Takes seconds, as in the first rank. Not in the constructor: until that returns no ping is answered.
        threading.Thread(target=importlib.import_module, args=(ENGINE_BUILDING,), daemon=True).start()

    def run(self, rendezvous: "Rendezvous") -> None:
        """Load this rank's part and compute until the first rank ends the group; raises when the group breaks."""
        building = importlib.import_module(ENGINE_BUILDING)
        context = ray.get_runtime_context()
        if rendezvous.certificate is not None:  # the ranks lie on several nodes
            use_interface_of(ray.util.get_node_ip_address())
        with written_steps(reports_path(context.gcs_address), context.get_actor_name() or ""):
            building.run_engine_rank(self._config, self._num_processes_on_node, rendezvous, self._rank)

    def ping(self) -> int:
        """Return the process id, during a step as well."""
        return os.getpid()


class EngineGroup:
    """A replica's handle of all processes of its engine."""

    def __init__(
        self,
        name: str,
        first: ActorHandle,
        others: Sequence[ActorHandle],
        kill: Callable[[ActorHandle], None] = ray.kill,
        is_stopped: Callable[[int], bool] = is_stopped,
        process_of: Callable[[ActorHandle], ActorProcess | None] = process_of,
        limits: LivenessLimits = DEFAULT_LIMITS,
        remote: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self.first = first
        self._remote = remote  # node by rank, of ranks on other nodes: their processes are not seen from here
        self._name = name
        self.others = dict(enumerate(others, start=1))  # by rank
        self._limits = limits
        self._runs: dict[int, asyncio.Future[None]] = {}  # by rank; none ends while all ranks run
        self._process_ids: dict[int, int] = {}  # by rank, once it has answered a ping or its actor is ready
        self._kill = kill
        self._is_stopped = is_stopped
        self._process_of = process_of

    @property
    def other_nodes(self) -> frozenset[str]:
        """Return the ids of the nodes beside the replica's own."""
        return frozenset(self._remote.values())

    async def start(self) -> ModelDescription:
        """Load all ranks' parts, run a first step together, and return the engine's description.

        Raises Ray's error of the rank that explains a failure, and EngineDead when one of several has died or hangs
        meanwhile; the others then wait for it until they are killed.
        """
        if self.others:
            # Passed on as a reference from process to process: read here, it would import torch.
            rendezvous = self.first.open_group.remote(*([True] if self._remote else []))
            self._runs = {rank: _started(actor.run.remote(rendezvous)) for rank, actor in self.others.items()}
            starting = _started(self.first.start.remote(rendezvous))
        else:
            starting = _started(self.first.start.remote())
        calls = [starting, *self._runs.values()]
        losses = [_started(self._watch_rank(rank)) for rank in (0, *self.others)] if self.others else []
        try:
            await asyncio.wait([*calls, *losses], return_when=asyncio.FIRST_COMPLETED)
            if starting.done() and starting.exception() is None:
                description: ModelDescription = starting.result()
                return description
            if not any(call.done() for call in calls):
                raise EngineDead(next(loss.result() for loss in losses if loss.done()))
        finally:
            for loss in losses:
                loss.cancel()
        await asyncio.wait(calls, timeout=self._limits.root_cause_s if self.others else None)
        raise self._first_reason(calls)

    async def first_loss(self) -> str:
        """Return the rank and the reason once a rank beyond the first has ended or stopped answering.

        Where several have ended it is the one that explains the others: one that is silent explains those that lost it.
        """
        losses = [_started(self._watch_rank(rank)) for rank in self.others]
        runs = list(self._runs.values())
        try:
            await asyncio.wait([*runs, *losses], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for loss in losses:
                loss.cancel()
        if not any(run.done() for run in runs):
            reason: str = next(loss.result() for loss in losses if loss.done())
            return reason
        if _are_consequences(runs):
            running = [rank for rank, run in self._runs.items() if not run.done()]
            pings = {rank: _started(self.others[rank].ping.remote()) for rank in running}
            await asyncio.wait(runs, timeout=self._limits.root_cause_s)
            silent = [rank for rank in running if not (pings[rank].done() or self._runs[rank].done())]
            for ping in pings.values():
                ping.cancel()
            if silent and _are_consequences(runs):
                return f"rank {silent[0]} of engine {self._name} does not answer"
        rank = min(
            (rank for rank, run in self._runs.items() if run.done()), key=lambda rank: _reason_order(self._runs[rank])
        )
        return self._end_of(rank, self._runs[rank].exception())

    def kill(self) -> None:
        """Kill every process at once."""
        for actor in (self.first, *self.others.values()):
            self._kill(actor)

    def _end_of(self, rank: int, error: BaseException | None) -> str:
        if error is None:
            return f"rank {rank} of engine {self._name} has ended"
        return f"rank {rank} of engine {self._name} has died: {cause_in_one_line(error)}"

    def _first_reason(self, calls: Sequence[asyncio.Future[Any]]) -> BaseException:
        """Choose the error that names the cause; `calls` are those of rank 0, rank 1 and so on."""
        ended = {rank: call.exception() for rank, call in enumerate(calls) if call.done()}
        rank = min(ended, key=lambda rank: _reason_order(calls[rank]))
        error = ended[rank]
        if error is None or (isinstance(error, RayActorError) and self.others):
            return EngineDead(self._end_of(rank, error))
        return error

    async def _watch_rank(self, rank: int) -> str:
        """Ping a rank until it is lost; returns the reason.

        A rank that does not answer may be busy with something that holds Python's lock: unless its process is stopped
        it has as long as ranks give each other. Processes of other nodes are not seen to be stopped.
        """
        limits, process_id = self._limits, None
        watch, actor = TickWatch(limits.ping_interval_s), self.others[rank] if rank else self.first
        response = _started(actor.ping.remote())
        while not watch.has_missed(limits.ping_timeout_s if rank in self._process_ids else limits.first_ping_timeout_s):
            await asyncio.sleep(limits.ping_interval_s)
            watch.tick()
            if response.done():
                if response.exception() is None:
                    watch.reset()
                    self._process_ids[rank] = response.result()
                # Also after a failure, which may have been a passing one of Ray.
                response = _started(actor.ping.remote())
            if rank in self._process_ids:
                process_id = self._process_ids[rank]
            elif watch.num_missed % watch.num_ticks(limits.stopped_ping_timeout_s) == 0 and (
                process := await asyncio.to_thread(self._process_of, actor)
            ):
                process_id = process.process_id
                if process.is_ready or rank in self._remote:
                    watch.reset()
                    self._process_ids[rank] = process_id
            has_missed = watch.has_missed(limits.stopped_ping_timeout_s) and rank not in self._remote
            if has_missed and process_id is not None and self._is_stopped(process_id):
                break
        return f"rank {rank} of engine {self._name} has not answered for {watch.silent_s:.1f} s"


def create_engine_group(
    address: EngineAddress, config: EngineConfig, resources: EngineResources, num_processes_on_node: int
) -> EngineGroup:
    """Make an engine's actors in the bundles of the replica's placement group."""
    placement = resources.placement()
    options = [_options(address, resources, placement, rank) for rank in range(resources.num_ranks)]
    first = ray.remote(EngineActor).options(**options[0]).remote(config, num_processes_on_node)
    others = [
        ray.remote(RankActor).options(**options[rank]).remote(config, num_processes_on_node, rank)
        for rank in range(1, resources.num_ranks)
    ]
    remote = {
        rank: placement.nodes[rank] for rank in range(resources.num_ranks) if not placement.shares_node_with_first(rank)
    }
    return EngineGroup(address.actor_name, first, others, remote=remote)


def _options(address: EngineAddress, resources: EngineResources, placement: RankPlacement, rank: int) -> dict[str, Any]:
    return {
        "name": str(RankName(engine=address.actor_name, rank=rank)),
        "namespace": address.namespace,
        "num_cpus": resources.num_cpus,
        "num_gpus": resources.num_gpus,
        "max_restarts": 0,
        "max_concurrency": MAX_CONCURRENT_CALLS if rank == 0 else 2,  # `run`, and `ping` beside it
        "scheduling_strategy": PlacementGroupSchedulingStrategy(
            placement_group=ray.util.get_current_placement_group(), placement_group_bundle_index=placement.bundles[rank]
        ),
    }


def _started(call: Awaitable[Any]) -> asyncio.Future[Any]:
    future = asyncio.ensure_future(call)
    future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # not every failure is read
    return future


def _are_consequences(runs: Sequence[asyncio.Future[None]]) -> bool:
    """Return whether every rank that has ended only noticed that another is lost."""
    return all(_reason_order(run) == CONSEQUENCE for run in runs if run.done())


def _reason_order(call: asyncio.Future[Any]) -> int:
    """Order failures by how much they explain: a rank's own error most, a lost connection least."""
    error = call.exception()
    if error is None or isinstance(cause_of(error), EngineDead):
        return CONSEQUENCE
    return PROCESS_DIED if isinstance(error, RayActorError) else OWN_ERROR
