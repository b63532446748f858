"""Listener for TLS, whose connections count against the port's limits from their first moment.

An event loop's own server knows a connection only when its handshake is over.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable

from rayinfer_deployments.router.connection_limits import Connection, ConnectionTable, Phase

HANDSHAKE_S = 10.0
SHUTDOWN_S = 2.0  # for a client's farewell
MAX_ACCEPTED = 128  # in a row
RETRY_S = 1.0  # after a failure to accept, such as too many open files

logger = logging.getLogger("ray.serve")


class TlsListener:
    """Listening socket of connections that begin with a TLS handshake."""

    def __init__(
        self,
        context: ssl.SSLContext,
        table: ConnectionTable[Connection],
        make_protocol: Callable[[], asyncio.Protocol],
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        self._context = context
        self._table = table
        self._make_protocol = make_protocol
        self._handshake_s = handshake_s
        self._loop = asyncio.get_running_loop()
        self._handshakes: dict[TlsHandshake, asyncio.Task[None]] = {}
        self._retrying: asyncio.TimerHandle | None = None
        self._socket: socket.socket | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a handshake is in progress."""
        return bool(self._handshakes)

    def listen(self, listener: socket.socket) -> None:
        """Accept the connections of a socket until closed."""
        listener.setblocking(False)
        self._socket = listener
        self._loop.add_reader(listener, self._accept, listener)

    def admit(self, connection: socket.socket, address: str) -> None:
        """Begin the handshake of an accepted connection, unless there are too many."""
        connection.setblocking(False)
        handshake = TlsHandshake(connection, self._table, self._make_protocol)
        if self._table.add(handshake, address):
            self._table.enter(handshake, Phase.RECEIVING)
            self._handshakes[handshake] = self._loop.create_task(self._shake_hands(handshake, connection))
        else:
            self._table.remove(handshake)
            connection.close()

    def close(self) -> None:
        """Accept no more; handshakes go on."""
        if self._retrying is not None:
            self._retrying.cancel()
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    async def wait_closed(self) -> None:
        """Return: nothing is pending after `close`."""

    async def abort(self) -> None:
        """End the handshakes in progress."""
        for handshake in self._handshakes:
            handshake.evict()
        await asyncio.gather(*self._handshakes.values())

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(MAX_ACCEPTED):
            try:
                connection, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.error("cannot accept a connection: %s", error)
                self._loop.remove_reader(listener)
                self._retrying = self._loop.call_later(RETRY_S, self.listen, listener)
                return
            self.admit(connection, address[0])

    async def _shake_hands(self, handshake: "TlsHandshake", connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: handshake,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._handshake_s,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except OSError:  # no TLS, no certificate that is trusted, not in time, or evicted
            pass
        finally:
            self._table.remove(handshake)
            del self._handshakes[handshake]


class TlsHandshake(asyncio.Protocol):
    """Connection in its handshake: for the limits, one with an incomplete request."""

    def __init__(
        self,
        connection: socket.socket,
        table: ConnectionTable[Connection],
        make_protocol: Callable[[], asyncio.Protocol],
    ) -> None:
        self._connection = connection
        self._table = table
        self._make_protocol = make_protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Hand the encrypted connection over to its protocol."""
        self._table.remove(self)
        protocol = self._make_protocol()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)

    def evict(self) -> None:
        """End the handshake: its transport, which the event loop keeps, reads the end of the connection."""
        with contextlib.suppress(OSError):  # it is closed
            self._connection.shutdown(socket.SHUT_RDWR)
