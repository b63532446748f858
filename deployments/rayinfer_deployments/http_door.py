"""The router's own HTTP server: on one machine tokens need not pass through another process on their way out."""

import asyncio
import contextlib
import socket

import uvicorn
from starlette.types import ASGIApp

from rayinfer.errors import RayinferError
from rayinfer_deployments.http_connection import HttpConnection

KEEP_ALIVE_S = 90
BACKLOG = 2048


class HttpDoor:
    """Listens on an address and serves an application there, in the running event loop."""

    def __init__(
        self, app: ASGIApp, host: str, port: int, *, connection: type[HttpConnection] = HttpConnection
    ) -> None:
        """Take the address; raises RayinferError when another process has it."""
        # A router that replaces another shares the port with it until that one is gone.
        self._socket = _listen(host, port)
        config = uvicorn.Config(
            app,
            http=connection,
            ws="none",  # a request that asks for a web socket is answered like any other
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=None,
            server_header=False,
        )
        self._server = uvicorn.Server(config)
        self._serving = asyncio.get_running_loop().create_task(self._server.serve(sockets=[self._socket]))

    async def close(self, grace_s: float) -> None:
        """Take no new connection, let those that are open finish within the grace, and end the others."""
        self._server.should_exit = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await asyncio.shield(self._serving)
        self._server.force_exit = True
        await asyncio.gather(self._serving, return_exceptions=True)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=True)
    except OSError as error:
        raise RayinferError(f"cannot listen on {host}:{port}: {error.strerror}") from None
