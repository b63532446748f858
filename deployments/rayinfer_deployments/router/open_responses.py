"""Responses over HTTP that are open, by which a router's end knows that the last one was sent."""

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send


class OpenResponses:
    """Count of the requests that an application answers at the moment."""

    def __init__(self) -> None:
        self._num_open = 0
        self._none_is_open = asyncio.Event()
        self._none_is_open.set()

    def counted(self, app: ASGIApp) -> ASGIApp:
        """Return the application with its requests counted."""

        async def counting(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":  # a lifespan lasts as long as the application
                await app(scope, receive, send)
                return
            self._num_open += 1
            self._none_is_open.clear()
            try:
                await app(scope, receive, send)
            finally:
                self._num_open -= 1
                if not self._num_open:
                    self._none_is_open.set()

        return counting

    async def wait_closed(self, timeout_s: float) -> None:
        """Wait until all are sent, for a limited time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._none_is_open.wait()
        except TimeoutError:
            return
