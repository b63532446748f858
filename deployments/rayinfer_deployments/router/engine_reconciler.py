"""Reconciliation of a router's engines with those that Serve reports."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Protocol

from ray.serve.handle import DeploymentHandle

from rayinfer.errors import EngineDead
from rayinfer.protocols import EngineClient, ModelDescription
from rayinfer.routing.engine_set import EngineSet
from rayinfer_deployments.discovery.addressed_request_router import watch_engines
from rayinfer_deployments.discovery.engine_address import EngineAddress, Engines
from rayinfer_deployments.router.ray_engine_client import RayEngineClient

RECONCILE_INTERVAL_S = 1.0
DESCRIBE_TIMEOUT_S = 10.0
HANDOVER_S = 10.0  # how long a leaving engine is kept while a new one joins

logger = logging.getLogger("ray.serve")


class DescribedEngineClient(EngineClient, Protocol):
    """A client of an engine that also describes the engine's model."""

    async def describe(self) -> ModelDescription:
        """Return the model's description; raises EngineDead when the engine is gone."""
        ...

    async def is_stuck(self) -> bool:
        """Return whether the engine has been in one step for too long; raises EngineDead when it is gone."""
        ...


class EngineReconciler:
    """Reconciler of an engine set: adds desired engines, drops others, and adds a lost one back if it answers again.

    A stuck engine stays out until its step has ended. Engines are added concurrently.
    """

    def __init__(
        self,
        engines: EngineSet,
        connect: Callable[[EngineAddress], DescribedEngineClient] = RayEngineClient.at,
        reconcile_interval_s: float = RECONCILE_INTERVAL_S,
        handover_s: float = HANDOVER_S,
    ) -> None:
        self._engines = engines
        self._connect = connect
        self._reconcile_interval_s = reconcile_interval_s
        self._handover_s = handover_s
        self._drop_by_s = 0.0  # when undesired engines are dropped in any case
        self._reported: Engines = {}
        self._desired: Engines = {}  # the reported ones without removed ones
        self._removed: set[str] = set()
        self._changed = asyncio.Event()
        self._has_report = asyncio.Event()
        self._is_complete = asyncio.Event()
        self._joining: dict[str, asyncio.Task[None]] = {}  # by engine

    async def follow(self, handle: DeploymentHandle) -> None:
        """Set the desired engines to those of a deployment, at every change, until cancelled."""
        async with watch_engines(handle, self.set_desired):
            await self.run()

    def set_desired(self, engines: Engines) -> None:
        """Set the desired engines.

        Other engines get no new requests from now on, or, where all desired ones have still to join, once one has.
        """
        self._removed &= set(engines)
        self._reported = engines
        self._desired = {name: address for name, address in engines.items() if name not in self._removed}
        self._drop_by_s = time.monotonic() + self._handover_s
        self._drop()
        self._is_complete.clear()
        if engines:  # an empty report may only mean that none is known yet
            self._has_report.set()
        self._changed.set()

    def remove(self, name: str) -> bool:
        """Remove an engine from the desired ones, though Serve still has it; returns whether it was one of them."""
        if name not in self._desired:
            return False
        self._removed.add(name)
        self.set_desired(self._reported)
        return True

    async def wait_until_complete(self, wait_s: float) -> None:
        """Return once every desired engine has joined, or none is known after the timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._has_report.wait()
                await self._is_complete.wait()

    async def run(self) -> None:
        """Add missing engines at every change and periodically, until cancelled."""
        try:
            while True:
                self._changed.clear()
                self._start_joining()
                self._observe()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), self._reconcile_interval_s)
        finally:
            for joining in self._joining.values():
                joining.cancel()

    def _start_joining(self) -> None:
        self._joining = {name: joining for name, joining in self._joining.items() if not joining.done()}
        for name, address in self._desired.items():
            if name not in self._engines.names and name not in self._joining:
                self._joining[name] = asyncio.get_running_loop().create_task(self._add(address))

    def _observe(self) -> None:
        self._drop()
        if all(name in self._engines.names for name in self._desired):
            self._is_complete.set()

    def _drop(self) -> None:
        """Drain engines that are no longer desired, if another is there, none will come, or none came in time."""
        known = self._engines.names
        if not self._desired or self._desired.keys() & set(known) or time.monotonic() > self._drop_by_s:
            for name in known:
                if name not in self._desired:
                    self._engines.drain(name)

    async def _add(self, address: EngineAddress) -> None:
        try:
            client = await asyncio.to_thread(self._connect, address)
            async with asyncio.timeout(DESCRIBE_TIMEOUT_S):
                description = await client.describe()
                if await client.is_stuck():
                    return  # its step may still end; otherwise its replica kills it
        except (EngineDead, TimeoutError):
            return  # asked again until Serve replaces it
        except Exception:
            logger.exception("engine %s could not be added; trying again", address.actor_name)
            return
        if address.actor_name in self._desired:
            self._engines.add(address.actor_name, client, description)
            logger.info("engine %s was added", address.actor_name)
            self._observe()
