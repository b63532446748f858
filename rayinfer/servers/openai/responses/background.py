"""Responses that are computed in the background, and watched for being cancelled by any router."""

import asyncio
import contextlib
import logging
from contextlib import aclosing

from rayinfer.error_kinds import error_kind
from rayinfer.servers.generation.responses import Outputs
from rayinfer.servers.openai.responses.answers import ResponseAnswer
from rayinfer.servers.openai.responses.store import ResponseStore

WATCH_S = 1.0

logger = logging.getLogger(__name__)


class BackgroundResponses:
    """Tasks of this process, each of which computes one response."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, response_id: str, answer: ResponseAnswer, outputs: Outputs) -> None:
        """Compute a response that is saved already."""
        task = asyncio.create_task(self._watched(response_id, answer, outputs))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watched(self, response_id: str, answer: ResponseAnswer, outputs: Outputs) -> None:
        """Compute until the response is complete or not wanted any more."""
        computing = asyncio.create_task(self._compute(answer, outputs))
        try:
            while not computing.done():
                await asyncio.wait((computing,), timeout=WATCH_S)
                if not computing.done() and not await asyncio.to_thread(self._store.touch, response_id):
                    break
        finally:
            computing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await computing

    async def _compute(self, answer: ResponseAnswer, outputs: Outputs) -> None:
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    answer.add(output)
            answer.body()
        except Exception as error:  # no client waits: the error becomes the response's
            if error_kind(error).status == 500:
                logger.exception("a response in the background failed")
            answer.failed(error)
