"""Keeps a router supplied with the engines that Serve says exist."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

from ray.serve.handle import DeploymentHandle

from rayinfer.errors import EngineDead
from rayinfer.protocols import EngineClient, ModelDescription
from rayinfer.routing.engine_set import EngineSet
from rayinfer_deployments.addressed_request_router import watch_engines
from rayinfer_deployments.engine_address import EngineAddress, Engines
from rayinfer_deployments.ray_engine_client import RayEngineClient

RECONCILE_INTERVAL_S = 1.0
DESCRIBE_TIMEOUT_S = 10.0

logger = logging.getLogger("ray.serve")


class DescribedEngineClient(EngineClient, Protocol):
    """A line to an engine that can say what its model is."""

    async def describe(self) -> ModelDescription:
        """Say what the model is; raises EngineDead when the engine is gone."""
        ...

    async def is_stuck(self) -> bool:
        """Say whether the engine has been at one step for too long; raises EngineDead when it is gone."""
        ...


class EngineRoster:
    """Keeps a set of engines equal to those wanted; one that was lost but still answers is taken back.

    One that is stuck in a step answers as well, and stays out until that step has ended. No engine waits for another
    to answer.
    """

    def __init__(
        self,
        engines: EngineSet,
        connect: Callable[[EngineAddress], DescribedEngineClient] = RayEngineClient.at,
        reconcile_interval_s: float = RECONCILE_INTERVAL_S,
    ) -> None:
        self._engines = engines
        self._connect = connect
        self._reconcile_interval_s = reconcile_interval_s
        self._wanted: Engines = {}
        self._changed = asyncio.Event()
        self._joining: dict[str, asyncio.Task[None]] = {}  # by engine

    async def follow(self, handle: DeploymentHandle) -> None:
        """Want whatever engines a deployment has, until cancelled."""
        async with watch_engines(handle, self.want):
            await self.keep_up()

    def want(self, engines: Engines) -> None:
        """Say which engines there are; those that are not among them get no new requests from now on."""
        self._wanted = engines
        for name in self._engines.names:
            if name not in engines:
                self._engines.drain(name)
        self._changed.set()

    async def keep_up(self) -> None:
        """Add what is wanted and missing, at every change and once in a while, until cancelled."""
        try:
            while True:
                self._changed.clear()
                self._begin_to_add()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), self._reconcile_interval_s)
        finally:
            for joining in self._joining.values():
                joining.cancel()

    def _begin_to_add(self) -> None:
        self._joining = {name: joining for name, joining in self._joining.items() if not joining.done()}
        for name, address in self._wanted.items():
            if name not in self._engines.names and name not in self._joining:
                self._joining[name] = asyncio.get_running_loop().create_task(self._add(address))

    async def _add(self, address: EngineAddress) -> None:
        try:
            client = await asyncio.to_thread(self._connect, address)
            async with asyncio.timeout(DESCRIBE_TIMEOUT_S):
                description = await client.describe()
                if await client.is_stuck():
                    return  # its step may still end; otherwise its replica ends it
        except (EngineDead, TimeoutError):
            return  # Serve will notice too and build another; until then we ask again
        except Exception:
            logger.exception("engine %s cannot join yet", address.actor_name)
            return
        if address.actor_name in self._wanted:
            self._engines.add(address.actor_name, client, description)
            logger.info("engine %s joins", address.actor_name)
