"""The router's own HTTP server: on one machine tokens need not pass through a proxy process."""

import asyncio
import contextlib
import functools
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from rayinfer.errors import RayinferError
from rayinfer_deployments.router.connection_limits import (
    DEFAULT_CONNECTION_LIMITS,
    Connection,
    ConnectionLimits,
    ConnectionTable,
)
from rayinfer_deployments.router.http_connection import HttpConnection
from rayinfer_deployments.router.tls import ReloadedTls
from rayinfer_deployments.router.tls_listener import HANDSHAKE_S, TlsListener

KEEP_ALIVE_S = 90
BACKLOG = 2048
CLOSE_ANNOUNCED_S = 2.0  # how long responses ask clients to reconnect before their connections are closed
POLL_S = 0.05
CONNECTION_CLOSE = (b"connection", b"close")


class HttpServer:
    """HTTP server of an application on one address, in the running event loop."""

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        *,
        limits: ConnectionLimits = DEFAULT_CONNECTION_LIMITS,
        connection: type[HttpConnection] = HttpConnection,
        tls: ReloadedTls | None = None,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        """Bind the address; raises RayinferError when another process has it."""
        # A router that replaces another shares the port with it until that one is gone.
        self._socket = _listen(host, port)
        self._table: ConnectionTable[Connection] = ConnectionTable(limits)
        self._config = uvicorn.Config(
            app,
            http=functools.partial(connection, table=self._table),  # type: ignore[arg-type]  # it is called
            ws="none",  # a request that asks for a web socket is answered like any other
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=None,
            server_header=False,
            proxy_headers=False,  # any local client could name another address
        )
        self._tls = None if tls is None else TlsListener(tls.context, self._table, self._make_protocol, handshake_s)
        self._server = _Server(self._config, self._make_protocol, self._tls)
        listener = self._socket.dup()  # the server closes its own; ours keeps the queue of new connections
        self._serving = asyncio.get_running_loop().create_task(self._server.serve(sockets=[listener]))

    @property
    def num_connections(self) -> int:
        """Connections that count against the limits, those in their handshake included."""
        return len(self._table)

    async def close(self, grace_s: float) -> None:
        """Accept no new connection, let open ones finish within the grace period, and close the others.

        No request is lost: accepted connections are answered, and a connection that waits for its client's
        next request is closed only after the client was asked to close it, and has sent nothing for a while.
        """
        if self._socket.fileno() < 0:  # it is closed already
            return
        if self._server.started:
            await self._stop_listening()
            self._announce_close()
            await self._wait_for_clients(min(grace_s, CLOSE_ANNOUNCED_S))
        self._server.should_exit = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await asyncio.shield(self._serving)
        self._server.force_exit = True
        await asyncio.gather(self._serving, return_exceptions=True)
        if self._tls is not None:
            await self._tls.abort()
        self._socket.close()

    async def _stop_listening(self) -> None:
        """Close the listener; connections that the kernel has already queued for it are accepted first."""
        for listener in self._server.servers:
            listener.close()
        self._socket.setblocking(False)
        loop, accepted = asyncio.get_running_loop(), []
        with contextlib.suppress(OSError):  # there is none left, or there are too many open files
            while True:
                accepted.append(self._socket.accept())
        self._socket.close()
        for connection, address in accepted:
            if self._tls is not None:
                self._tls.admit(connection, address[0])
            else:
                connection.setblocking(False)
                await loop.connect_accepted_socket(self._make_protocol, connection)

    def _make_protocol(self) -> asyncio.Protocol:
        return self._config.http_protocol_class(  # type: ignore[call-arg]  # as uvicorn makes it
            config=self._config, server_state=self._server.server_state, app_state=self._server.lifespan.state
        )

    def _announce_close(self) -> None:
        """Close every connection after its next answer."""
        self._config.encoded_headers = [*self._config.encoded_headers, CONNECTION_CLOSE]
        state = self._server.server_state
        state.default_headers = [*state.default_headers, CONNECTION_CLOSE]

    async def _wait_for_clients(self, wait_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self._server.server_state.connections or (self._tls and self._tls.is_busy):  # noqa: ASYNC110 - uvicorn has no event for it
                    await asyncio.sleep(POLL_S)


class _Server(uvicorn.Server):
    """uvicorn's server, with a listener of its own for TLS."""

    def __init__(
        self, config: uvicorn.Config, make_protocol: Callable[[], asyncio.Protocol], tls: TlsListener | None
    ) -> None:
        super().__init__(config)
        self._make_protocol = make_protocol
        self._tls = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on the sockets."""
        await super().startup(sockets=[])
        loop = asyncio.get_running_loop()
        for listener in sockets or ():
            if self._tls is not None:
                self._tls.listen(listener)
                self.servers.append(self._tls)  # type: ignore[arg-type]  # it is only closed
            else:
                self.servers.append(await loop.create_server(self._make_protocol, sock=listener, backlog=BACKLOG))


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=True)
    except OSError as error:
        raise RayinferError(f"cannot listen on {host}:{port}: {error.strerror}") from None
