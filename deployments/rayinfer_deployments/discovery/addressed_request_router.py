"""Engine discovery over Serve's replica updates; the one file that uses Serve's alpha routing API.

Serve pickles this module by value, so it keeps no state of its own.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from rayinfer_deployments.discovery.engine_address import EngineAddress, Engines, publish_engines, subscribe_to_engines

POLL_INTERVAL_S = 0.5  # of the fallback


class AddressedRequestRouter(RequestRouter):  # type: ignore[misc] # Ray is untyped to mypy here
    """Request router of Serve that publishes the engine of every replica in Serve's updates."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Rank all candidates alike: only control calls go through Serve's handles."""
        return [self.select_available_replicas(candidate_replicas)]

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take the replicas that serve now, which excludes those that are shutting down."""
        super().update_replicas(replicas)
        self._publish()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Take note before the controller does."""
        super().on_replica_actor_died(replica_id)
        self._publish()

    def _publish(self) -> None:
        found = [EngineAddress.from_metadata(replica.replica_metadata) for replica in self.curr_replicas.values()]
        engines = {address.actor_name: address for address in found if address is not None}
        publish_engines(self._deployment_id.app_name, self._deployment_id.name, engines)


def addressed_routing() -> RequestRouterConfig:
    """Make the setting that an engine deployment needs to be watched without polling."""
    return RequestRouterConfig(request_router_class=AddressedRequestRouter)


@contextlib.asynccontextmanager
async def watch_engines(handle: DeploymentHandle, on_change: Callable[[Engines], None]) -> AsyncIterator[None]:
    """While the context lasts, have `on_change` called on this event loop whenever the deployment's engines change.

    Serve's long poll brings the changes. A deployment without `addressed_routing` is asked twice a second instead.
    """
    loop = asyncio.get_running_loop()
    has_report = asyncio.Event()

    def reported(engines: Engines) -> None:
        has_report.set()
        on_change(engines)

    def reported_from_thread(engines: Engines) -> None:
        loop.call_soon_threadsafe(reported, engines)

    unsubscribe = subscribe_to_engines(handle.app_name, handle.deployment_name, reported_from_thread)
    polling = loop.create_task(_poll_until_reported(handle, on_change, has_report))
    try:
        yield
    finally:
        unsubscribe()
        polling.cancel()


async def _poll_until_reported(
    handle: DeploymentHandle, on_change: Callable[[Engines], None], has_report: asyncio.Event
) -> None:
    handle = handle.options(method_name="record_replica_metadata")  # also starts the handle's long poll
    last: Engines | None = None
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(has_report.wait(), POLL_INTERVAL_S)
            return
        engines = await _ask_replicas(handle)
        if engines != last and not has_report.is_set():
            last = engines
            on_change(engines)


async def _ask_replicas(handle: DeploymentHandle) -> Engines:
    try:
        results = await handle.broadcast("record_replica_metadata").results_async(timeout_s=4 * POLL_INTERVAL_S)
    except Exception:  # no replica is running, or one is on its way out
        return {}
    found = [EngineAddress.from_metadata(metadata) for metadata in results]
    return {address.actor_name: address for address in found if address is not None}
