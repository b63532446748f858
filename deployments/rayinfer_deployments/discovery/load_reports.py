"""Reports of router queues to engine replicas, whose metrics Serve's autoscaler reads."""

import asyncio
import logging
import time
from collections.abc import Callable

from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from rayinfer.routing.first_tokens import NOTHING, FirstTokenCounts

INTERVAL_S = 1.0
RESPONSE_TIMEOUT_S = 5.0  # of replicas
FORGET_S = 10.0  # after the router's last report

logger = logging.getLogger("ray.serve")


class RouterLoads:
    """A replica's record of the routers' queues: each router reports to every replica, since any may end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reports: dict[str, tuple[float, FirstTokenCounts]] = {}  # by router, with the time

    def note(self, router: str, counts: FirstTokenCounts) -> None:
        """Record a router's report."""
        self._reports[router] = (self._clock(), counts)

    def total(self) -> FirstTokenCounts:
        """Add up the routers' recent reports."""
        oldest_s, total = self._clock() - FORGET_S, NOTHING
        self._reports = {router: report for router, report in self._reports.items() if report[0] >= oldest_s}
        for _, counts in self._reports.values():
            total = total.plus(counts)
        return total


async def report_to_replicas(handle: DeploymentHandle, router: str, counts: Callable[[], FirstTokenCounts]) -> None:
    """Report this router's queue to all of a model's replicas once a second, until cancelled."""
    while True:
        try:
            response = handle.broadcast("note_router_load", router, tuple(counts()))
            await response.results_async(timeout_s=RESPONSE_TIMEOUT_S, return_exceptions=True)
        except (DeploymentUnavailableError, TimeoutError):
            pass  # no replica, or one that does not answer
        except Exception:
            logger.exception("the queue could not be reported to the replicas")
        await asyncio.sleep(INTERVAL_S)
