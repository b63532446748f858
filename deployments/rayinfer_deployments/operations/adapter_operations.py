"""Operators' commands on LoRA adapters, which any router runs for all of them."""

from typing import Any

from rayinfer_deployments.applications import ROUTER
from rayinfer_deployments.operations.application_replicas import ApplicationReplicas
from rayinfer_deployments.operations.control_socket import Operation
from rayinfer_deployments.operations.replica_calls import within

LOAD_S = 120.0  # until an engine has read an adapter


class AdapterOperations:
    """Calls to a router of an application."""

    def __init__(self, replicas: ApplicationReplicas) -> None:
        self._replicas = replicas

    def by_name(self) -> dict[str, Operation]:
        """Return the commands by their names on the control socket."""
        return {"adapters": self.adapters}

    async def adapters(self, action: str, **arguments: Any) -> Any:
        """List, load or unload adapters; returns descriptions of them, raises RayinferError."""
        response = self._replicas.handle(ROUTER).run_on_adapters.remote(action, arguments)
        return await within(LOAD_S, response, "the routers")
