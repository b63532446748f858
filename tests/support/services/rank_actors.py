"""Stand-in for a replica, without Serve: it lies in a placement group and owns an engine's rank actors."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator

import ray
from ray import cloudpickle
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rayinfer.config import EngineConfig
from rayinfer.errors import EngineDead
from rayinfer.outputs import TokenDelta
from rayinfer.protocols import GenerationRequest
from rayinfer_deployments.cluster.actor_processes import ActorProcess, process_of
from rayinfer_deployments.discovery.engine_address import EngineAddress
from rayinfer_deployments.engine.engine_ranks import EngineGroup, EngineResources, create_engine_group
from rayinfer_deployments.router.ray_engine_client import RayEngineClient

MAX_RANKS = 4
CPUS_EACH = 0.1
ROUTER = "test"
WITHIN_S = 300.0  # on a machine that has much else to do
HAS_STARTED = "it has started"


class GroupOwner:
    """Owner of rank actors, of one engine after the other."""

    async def deltas_of(self, config: EngineConfig, number: int, requests: list[GenerationRequest]) -> list[TokenDelta]:
        """Build the engine's actors, give them all requests, and end them."""
        num_ranks = config.tensor_parallel_size * config.pipeline_parallel_size
        address = EngineAddress(actor_name=f"engine-{number}", namespace="rank-actors")
        resources = EngineResources(num_ranks=num_ranks, num_cpus=CPUS_EACH, num_gpus=0)
        group = create_engine_group(address, config, resources, num_ranks)
        try:
            async with asyncio.timeout(WITHIN_S):
                await group.start()
                client = RayEngineClient.at(address)
                await client.submit(requests, ROUTER)
                deltas, unfinished = [], {request.request_id for request in requests}
                async for message in client.outputs(ROUTER):
                    deltas += message.deltas
                    unfinished -= {delta.request_id for delta in message.deltas if delta.finish_reason is not None}
                    if not unfinished:
                        break
                await group.first.shutdown.remote()
                return deltas
        finally:
            group.kill()

    async def start_seconds(self, config: EngineConfig, number: int) -> float:
        """Start two rank actors undisturbed; returns the seconds from rank 1's process to the end of the start."""
        group = self._two_ranks(config, number)
        try:
            async with asyncio.timeout(WITHIN_S):
                starting = asyncio.ensure_future(group.start())
                await _rank_1_process(group)
                began = time.monotonic()
                await starting
                return time.monotonic() - began
        finally:
            group.kill()

    async def seconds_until_named(self, config: EngineConfig, number: int, after_s: float) -> tuple[str, float]:
        """Stop rank 1 so long after Ray has made its process; returns what the start then fails with, and when."""
        group = self._two_ranks(config, number)
        try:
            async with asyncio.timeout(WITHIN_S):
                starting = asyncio.ensure_future(group.start())
                process = await _rank_1_process(group)
                await asyncio.sleep(after_s)
                os.kill(process.process_id, signal.SIGSTOP)
                stopped = time.monotonic()
                try:
                    await starting
                except EngineDead as error:
                    return str(error), time.monotonic() - stopped
                return HAS_STARTED, 0.0
        finally:
            group.kill()

    def _two_ranks(self, config: EngineConfig, number: int) -> EngineGroup:
        address = EngineAddress(actor_name=f"engine-{number}", namespace="rank-actors")
        resources = EngineResources(num_ranks=2, num_cpus=CPUS_EACH, num_gpus=0)
        return create_engine_group(address, config, resources, 2)


async def _rank_1_process(group: EngineGroup) -> ActorProcess:
    while (process := await asyncio.to_thread(process_of, group.others[1])) is None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return process


@contextlib.contextmanager
def group_owner() -> Iterator[ray.actor.ActorHandle]:
    """Start the owner in a placement group that has a bundle for each rank; both are gone at the end."""
    itself = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(itself)  # processes of Ray do not see this folder
    bundles: PlacementGroup = placement_group([{"CPU": CPUS_EACH}] * MAX_RANKS, strategy="STRICT_PACK")
    strategy = PlacementGroupSchedulingStrategy(bundles, 0, placement_group_capture_child_tasks=True)
    try:
        ray.get(bundles.ready(), timeout=WITHIN_S)
        yield ray.remote(GroupOwner).options(num_cpus=0, scheduling_strategy=strategy).remote()
    finally:
        remove_placement_group(bundles)
        cloudpickle.unregister_pickle_by_value(itself)
