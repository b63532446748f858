"""Reconciliation of a router's engines with the replicas that Serve reports."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Protocol

from ray.serve.handle import DeploymentHandle

from rayinfer.errors import EngineDead
from rayinfer.liveness import DEFAULT_LIMITS, LivenessLimits
from rayinfer.protocols import EngineClient, KVAddress, ModelDescription
from rayinfer.routing.engine_set import EngineSet
from rayinfer_deployments.discovery.addressed_request_router import watch_engines
from rayinfer_deployments.discovery.engine_address import EngineAddress, Engines
from rayinfer_deployments.router.ray_engine_client import RayEngineClient

logger = logging.getLogger("ray.serve")


class DescribedEngineClient(EngineClient, Protocol):
    """A client of an engine that also describes the engine's model."""

    async def describe(self) -> ModelDescription:
        """Return the model's description; raises EngineDead when the engine is gone."""
        ...

    async def kv_address(self) -> KVAddress | None:
        """Return where the engine's process serves KV blocks, if it does; raises EngineDead when it is gone."""
        ...

    async def is_stuck(self) -> bool:
        """Return whether the engine has been in one step for too long; raises EngineDead when it is gone."""
        ...


class EngineReconciler:
    """Reconciler of an engine set with the desired engines; a lost engine that still answers is added again.

    An engine that is stuck in a step is not added until that step has ended. Engines are added independently.
    """

    def __init__(
        self,
        engines: EngineSet,
        connect: Callable[[EngineAddress], DescribedEngineClient] = RayEngineClient.at,
        limits: LivenessLimits = DEFAULT_LIMITS,
    ) -> None:
        self._engines = engines
        self._connect = connect
        self._limits = limits
        self._drop_deadline = 0.0  # after which undesired engines are drained even without a replacement
        self._reported: Engines = {}
        self._desired: Engines = {}  # those reported and not removed
        self._removed: set[str] = set()
        self._changed = asyncio.Event()
        self._has_report = asyncio.Event()
        self._is_complete = asyncio.Event()
        self._adding: dict[str, asyncio.Task[None]] = {}  # by engine

    async def follow(self, handle: DeploymentHandle) -> None:
        """Set the desired engines to those of a deployment, at every change, until cancelled."""
        async with watch_engines(handle, self.set_desired):
            await self.run()

    def set_desired(self, engines: Engines) -> None:
        """Set the desired engines.

        Other engines get no new requests from now on, or, where no desired one is added yet, once one is.
        """
        self._removed &= set(engines)
        self._reported = engines
        self._desired = {name: address for name, address in engines.items() if name not in self._removed}
        self._drop_deadline = time.monotonic() + self._limits.replace_timeout_s
        self._drop()
        self._is_complete.clear()
        if engines:  # Serve reports none as long as it does not know
            self._has_report.set()
        self._changed.set()

    def remove(self, name: str) -> bool:
        """Remove an engine from the desired ones, though Serve still has it; returns whether it was one of them."""
        if name not in self._desired:
            return False
        self._removed.add(name)
        self.set_desired(self._reported)
        return True

    async def wait_complete(self, timeout_s: float) -> None:
        """Return once every desired engine is added, or after the timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._has_report.wait()
                await self._is_complete.wait()

    async def run(self) -> None:
        """Add missing engines at every change and periodically, until cancelled."""
        try:
            while True:
                self._changed.clear()
                self._start_adding()
                self._observe()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), self._limits.reconcile_interval_s)
        finally:
            for adding in self._adding.values():
                adding.cancel()

    def _start_adding(self) -> None:
        self._adding = {name: adding for name, adding in self._adding.items() if not adding.done()}
        for name, address in self._desired.items():
            if name not in self._engines.names and name not in self._adding:
                self._adding[name] = asyncio.get_running_loop().create_task(self._add(address))

    def _observe(self) -> None:
        self._drop()
        if all(name in self._engines.names for name in self._desired):
            self._is_complete.set()

    def _drop(self) -> None:
        """Drain undesired engines, if a desired one is there, none is desired, or none was added in time."""
        known = self._engines.names
        if not self._desired or self._desired.keys() & set(known) or time.monotonic() > self._drop_deadline:
            for name in known:
                if name not in self._desired:
                    self._engines.drain(name)

    async def _add(self, address: EngineAddress) -> None:
        try:
            client = await asyncio.to_thread(self._connect, address)
            async with asyncio.timeout(self._limits.describe_timeout_s):
                description = await client.describe()
                kv_address = await client.kv_address()
                if await client.is_stuck():
                    return  # its step may still end; otherwise its replica kills it
        except (EngineDead, TimeoutError):
            return  # Serve will notice as well and start another; until then it is retried
        except Exception:
            logger.exception("engine %s cannot be added yet", address.actor_name)
            return
        if address.actor_name in self._desired:
            self._engines.add(address.actor_name, client, description, kv_address)
            logger.info("engine %s is added", address.actor_name)
            self._observe()
