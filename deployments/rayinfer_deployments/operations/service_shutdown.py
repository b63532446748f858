"""End of a service's requests: routers refuse new ones, and end those that have not ended in time with an error."""

from rayinfer_deployments.applications import ROUTER
from rayinfer_deployments.operations.application_replicas import ApplicationReplicas
from rayinfer_deployments.operations.control_socket import Operation


class ServiceShutdown:
    """Calls to the routers of an application while it shuts down; those that do not answer are ignored."""

    def __init__(self, replicas: ApplicationReplicas) -> None:
        self._replicas = replicas

    def by_name(self) -> dict[str, Operation]:
        """Return the commands by their names on the control socket."""
        return {"stop_admitting": self.stop_admitting, "end_requests": self.end_requests}

    async def stop_admitting(self) -> int:
        """Have the routers refuse new requests from now on; returns how many are open.

        Those without any end at once, as `end_requests` has them.
        """
        return sum(await self._replicas.of_all(ROUTER, "stop_admitting"))

    async def end_requests(self) -> None:
        """Have the routers end open requests, and write usage and logs."""
        await self._replicas.of_all(ROUTER, "end_requests")
