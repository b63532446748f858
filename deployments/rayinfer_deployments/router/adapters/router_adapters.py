"""Adapters of one router: its registry, which it shares with the other routers of its application."""

import logging
from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from rayinfer.errors import RayinferError
from rayinfer.servers.adapters.registry import AdapterRegistry
from rayinfer.servers.adapters.routes import adapter_entry
from rayinfer_deployments.router.adapters.ray_adapter_table import RayAdapterTable
from rayinfer_deployments.router.routed_models import RoutedModels

SPREAD_S = 2.0  # for the other routers' answers: those that do not answer read the table themselves, a little later

logger = logging.getLogger("ray.serve")


class RouterAdapters:
    """Registry over the models of a router."""

    def __init__(self, models: RoutedModels) -> None:
        self._models = models
        context = serve.get_replica_context()
        self._names = (context.deployment, context.app_name)
        self._handle: DeploymentHandle | None = None
        table = RayAdapterTable(context.app_name)
        self.registry = AdapterRegistry(models.served, table=table, spread=self._spread)
        for model, folders in models.adapted:
            self.registry.add_base(model, folders)

    async def start(self) -> None:
        """Serve the adapters that are there, and follow their changes until the router ends."""
        if self._models.adapted:
            await self.registry.refresh(waits_for_rest=False)
            self._models.follow(self.registry.follow())

    async def run(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Run an operator's command: list, load or unload; raises RayinferError."""
        if operation == "list":
            return [adapter_entry(adapter) for adapter in self.registry.adapters]
        if operation == "load":
            return adapter_entry(await self.registry.load(**arguments))
        if operation == "unload":
            await self.registry.unload(**arguments)
            return None
        raise RayinferError(f"adapters have no command {operation!r}: list, load or unload")

    async def _spread(self) -> None:
        """Have the other routers read the table; this one has done so."""
        try:
            if self._handle is None:
                self._handle = serve.get_deployment_handle(*self._names)
            response = self._handle.broadcast("refresh_adapters")
            await response.results_async(timeout_s=SPREAD_S, return_exceptions=True)
        except Exception as error:  # Serve's controller is away, or a router is silent
            logger.warning("other routers learn of an adapter a little later: %s", error)
