"""A response that is made while its client waits, and given up when the client leaves."""

from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rayinfer.servers.generation.run_until_disconnect import run_until_disconnect


class AwaitedResponse(Response):
    """Response of work that is cancelled on disconnect; its errors escape, as nothing was sent yet."""

    def __init__(self, work: Callable[[], Awaitable[Response]]) -> None:
        super().__init__()
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Work, then send."""
        await run_until_disconnect(receive, self._respond(scope, receive, send))

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._work()
        await response(scope, receive, send)
