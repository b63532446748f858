"""How a model that has no engine gets one: Serve starts a replica for a call that waits for one."""

import asyncio
import logging
import time
from collections.abc import Callable

from ray.serve.exceptions import RequestCancelledError
from ray.serve.handle import DeploymentHandle, DeploymentResponse

LOOK_INTERVAL_S = 0.1
LONGEST_PAUSE_S = 5.0  # before Serve is asked again, which has just refused: its deployment has failed

logger = logging.getLogger("ray.serve")


async def start_engines(handle: DeploymentHandle, needs_engine: Callable[[], bool]) -> None:
    """Keep one call to a model's replicas outstanding for as long as an engine is needed, until cancelled.

    However many requests wait, Serve sees one: how many engines they take is decided once the first is there.
    """
    call: DeploymentResponse | None = None
    answer: asyncio.Task[bool] | None = None
    pause_s, latest_end_s = 0.0, 0.0
    try:
        while True:
            if answer is not None and answer.done():
                # A replica is there, and the router hears of its engine; or Serve gave up.
                pause_s = 0.0 if answer.result() else min(LONGEST_PAUSE_S, 2 * max(pause_s, LOOK_INTERVAL_S))
                latest_end_s = time.monotonic()
                call = answer = None
            if needs_engine() and answer is None and time.monotonic() >= latest_end_s + pause_s:
                logger.info("a request waits and there is no engine: Serve is asked for one")
                call = handle.awaken.remote()
                answer = asyncio.get_running_loop().create_task(_answered(call))
            elif call is not None and not needs_engine():
                call.cancel()
            await asyncio.sleep(LOOK_INTERVAL_S)
    finally:
        if call is not None:
            call.cancel()


async def _answered(call: DeploymentResponse) -> bool:
    """Wait for the call's end; tells whether that was no failure."""
    try:
        await call
    except (RequestCancelledError, asyncio.CancelledError):  # nobody needs an engine any more
        pass
    except Exception as error:
        logger.info("Serve could not start an engine: %s", error)
        return False
    return True
