"""Keeps a dispatcher supplied with the engines that Serve says exist."""

import asyncio
import contextlib
import logging

from ray.serve.handle import DeploymentHandle

from rayinfer.errors import EngineDead
from rayinfer.routing.dispatch import Dispatcher
from rayinfer_deployments.addressed_request_router import watch_engines
from rayinfer_deployments.engine_address import EngineAddress, Engines
from rayinfer_deployments.ray_engine_client import RayEngineClient

RECONCILE_INTERVAL_S = 1.0

logger = logging.getLogger("ray.serve")


class EngineRoster:
    """Keeps a dispatcher's engines equal to those that Serve says exist."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._wanted: Engines = {}
        self._changed = asyncio.Event()

    async def follow(self, handle: DeploymentHandle) -> None:
        """Add and drain engines until cancelled; one that was lost but still answers is taken back."""
        async with watch_engines(handle, self._set_wanted):
            while True:
                self._changed.clear()
                await self._reconcile()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), RECONCILE_INTERVAL_S)

    def _set_wanted(self, engines: Engines) -> None:
        self._wanted = engines
        for name in self._dispatcher.engine_names:
            if name not in engines:
                self._dispatcher.drain_engine(name)
        self._changed.set()

    async def _reconcile(self) -> None:
        known = self._dispatcher.engine_names
        missing = [address for name, address in self._wanted.items() if name not in known]
        await asyncio.gather(*(self._add(address) for address in missing))

    async def _add(self, address: EngineAddress) -> None:
        try:
            client = await asyncio.to_thread(RayEngineClient.at, address)
            async with asyncio.timeout(10 * RECONCILE_INTERVAL_S):
                description = await client.describe()
        except (EngineDead, TimeoutError):
            return  # Serve will notice too and build another; until then we ask again
        except Exception:
            logger.exception("engine %s cannot join yet", address.actor_name)
            return
        if address.actor_name in self._wanted:
            self._dispatcher.add_engine(address.actor_name, client, description)
            logger.info("engine %s joins", address.actor_name)
