"""Metrics of the other routers of an application, so that one scrape of an address that they share has all of them."""

import asyncio
import logging
import time

from ray import serve
from ray.serve.handle import DeploymentHandle

from rayinfer.metrics.families import MetricsSnapshot

FRESH_S = 0.5  # scrapes within this time share one round of questions
ANSWER_S = 1.0

logger = logging.getLogger("ray.serve")


class SiblingMetrics:
    """Latest metrics of the other routers; those that do not answer in time are left out."""

    def __init__(self, router_id: str) -> None:
        context = serve.get_replica_context()
        self._router_id = router_id
        self._names = (context.deployment, context.app_name)
        self._handle: DeploymentHandle | None = None
        self._latest: list[MetricsSnapshot] = []
        self._asked_s = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    async def latest(self) -> list[MetricsSnapshot]:
        """Return their metrics, at most `FRESH_S` old where they answer."""
        if self._asking is None and time.monotonic() - self._asked_s > FRESH_S:
            self._asking = asyncio.create_task(self._ask())
        if self._asking is not None:
            await asyncio.shield(self._asking)
        return self._latest

    async def _ask(self) -> None:
        try:
            if self._handle is None:
                self._handle = serve.get_deployment_handle(*self._names)
            response = self._handle.broadcast("metrics_snapshot")
            answers = await response.results_async(timeout_s=ANSWER_S, return_exceptions=True)
            snapshots = [answer for answer in answers if isinstance(answer, MetricsSnapshot)]
            self._latest = [snapshot for snapshot in snapshots if snapshot.router != self._router_id]
        except Exception as error:  # Serve's controller is away, or no replica is known yet: our own are still true
            logger.warning("the metrics of other routers are missing: %s", error)
            self._latest = []
        finally:
            self._asked_s = time.monotonic()
            self._asking = None
