"""Calls by operators to the replicas of one application's deployments: routers and engine replicas."""

import asyncio
import time
from typing import Any

from ray import serve
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from rayinfer.errors import RayinferError
from rayinfer_deployments.applications import ROUTER
from rayinfer_deployments.operations.replica_calls import engines_in, is_gone
from rayinfer_deployments.router.router import RouterReport

POLL_S = 0.1
RESPONSE_TIMEOUT_S = 5.0  # of routers, to one question
ROUTERS_S = 30.0  # until one of them answers, when they are asked again and again


class ApplicationReplicas:
    """Client of all replicas of an application; those that do not answer in time are ignored."""

    def __init__(self, application: str) -> None:
        self._application = application
        self._handles: dict[str, DeploymentHandle] = {}

    async def engines(self) -> dict[str, str]:
        """List the engines that accept requests, with the model of each."""
        latest = time.monotonic() + ROUTERS_S
        while not (reports := await self.reports()):
            if time.monotonic() > latest or not await self.is_deployed():
                raise RayinferError("no router answers; see `rayinfer status`")
            await asyncio.sleep(POLL_S)
        return engines_in(reports)

    async def reports(self) -> list[RouterReport]:
        """Ask every router; empty while there is none."""
        results = await self.of_all(ROUTER, "report")
        return [result for result in results if isinstance(result, RouterReport)]

    async def of_all(self, deployment: str, method: str, *arguments: Any) -> list[Any]:
        """Call a method of all replicas; those that do not answer are ignored."""
        if not await self.is_deployed():
            return []
        try:
            response = self.handle(deployment).broadcast(method, *arguments)
        except KeyError:
            return []  # Serve knows an application before its deployments
        try:
            results = await response.results_async(timeout_s=RESPONSE_TIMEOUT_S, return_exceptions=True)
        except (DeploymentUnavailableError, TimeoutError):
            return []  # there is no replica, or none that answers
        return [result for result in results if not isinstance(result, BaseException)]

    async def is_gone(self, engine: str) -> bool:
        """Return whether an engine's actor has ended."""
        return await is_gone(engine)

    async def is_deployed(self) -> bool:
        """Return whether Serve knows the application."""
        return self._application in await asyncio.to_thread(lambda: serve.status().applications)

    def handle(self, deployment: str) -> DeploymentHandle:
        """Return the handle of a deployment."""
        if deployment not in self._handles:
            self._handles[deployment] = serve.get_deployment_handle(deployment, self._application)
        return self._handles[deployment]
