"""How a model that has no engine gets one: Serve starts a replica for a call that waits for one."""

import asyncio
import logging
from collections.abc import Callable

from ray.serve.handle import DeploymentHandle, DeploymentResponse

LOOK_INTERVAL_S = 0.1

logger = logging.getLogger("ray.serve")


async def start_engines(handle: DeploymentHandle, needs_engine: Callable[[], bool]) -> None:
    """Keep one call to a model's replicas outstanding for as long as an engine is needed, until cancelled.

    However many requests wait, Serve sees one: how many engines they take is decided once the first is there.
    """
    call: DeploymentResponse | None = None
    answer: asyncio.Task[None] | None = None
    try:
        while True:
            if answer is not None and answer.done():
                call = answer = None  # a replica is there, and the router hears of its engine; or Serve gave up
            if needs_engine() and answer is None:
                logger.info("a request waits and there is no engine: Serve is asked for one")
                call = handle.awaken.remote()
                answer = asyncio.get_running_loop().create_task(_answered(call))
            elif call is not None and not needs_engine():
                call.cancel()
            await asyncio.sleep(LOOK_INTERVAL_S)
    finally:
        if call is not None:
            call.cancel()


async def _answered(call: DeploymentResponse) -> None:
    try:
        await call
    except asyncio.CancelledError:
        pass
    except Exception as error:
        logger.info("Serve could not start an engine: %s", error)
