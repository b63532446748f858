"""Control connection between rank 0 and another rank: commands out, results and failures back.

Plain TCP: messages are sent without waiting for the other end to read them, and a close shows at once that the other
process is gone. Connections between ranks of one machine stay on it; those between machines use TLS.
"""

import contextlib
import math
import select
import socket
import ssl
import time
from collections.abc import Iterable, Sequence

from rayinfer import wire
from rayinfer.engine.ranks.rank_messages import DECODER, RankMessage
from rayinfer.errors import RayinferError

READ_BYTES = 1 << 16  # one read brings a whole plan, unless it is a long one
WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class ConnectionLost(RayinferError):
    """The other rank is gone, or has sent nothing for too long."""


class ControlConnection:
    """One end of a connection, for one thread at a time, but for `shutdown`; with TLS where the socket has it."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._unread = bytearray()

    @property
    def local_host(self) -> str:
        """The address by which the other end sees this one."""
        host: str = self._socket.getsockname()[0]
        return host

    @property
    def has_unread(self) -> bool:
        """Whether unread data has arrived, or the other end has closed."""
        if self._socket.fileno() < 0:
            return False
        if self._unread or (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
            return True
        return bool(_poll(self._socket, select.POLLIN, 0.0))

    def fileno(self) -> int:
        """The descriptor, to wait for several connections at once; -1 once it is closed."""
        return self._socket.fileno()

    def continue_handshake(self) -> bool:
        """Go on with TLS's handshake, if there is one, as far as data has arrived; returns whether it is complete.

        Raises ConnectionLost.
        """
        if not isinstance(self._socket, ssl.SSLSocket):
            return True
        try:
            self._socket.setblocking(False)
            self._socket.do_handshake()
        except WOULD_BLOCK:
            return False
        except OSError as error:
            raise ConnectionLost(f"its TLS handshake failed: {error}") from None
        return True

    def send(self, message: RankMessage, timeout_s: float) -> None:
        """Send a message; raises ConnectionLost."""
        self.send_frame(wire.encode(message), timeout_s)

    def send_frame(self, frame: bytes | bytearray, timeout_s: float) -> None:
        """Send an encoded message, which may go to several ranks; raises ConnectionLost.

        Data that arrives meanwhile is read: two ends that both send much would block each other.
        """
        unsent, deadline = memoryview(frame), time.monotonic() + timeout_s
        try:
            self._socket.setblocking(False)
            while unsent:
                with contextlib.suppress(*WOULD_BLOCK):
                    unsent = unsent[self._socket.send(unsent) :]
                    continue
                if (left_s := deadline - time.monotonic()) <= 0:
                    raise ConnectionLost(f"it has read nothing for {timeout_s:g} s")
                events = _poll(self._socket, select.POLLOUT | select.POLLIN, left_s)
                if events & select.POLLIN:
                    self._read_arrived(READ_BYTES)
                elif events & ~select.POLLOUT:
                    raise ConnectionLost("it has closed the connection")
        except OSError as error:
            raise ConnectionLost(f"the connection is closed: {error}") from None

    def receive(self, timeout_s: float = math.inf, *, max_bytes: int = wire.MAX_MESSAGE_BYTES) -> RankMessage:
        """Wait for the other end's next message; raises ConnectionLost, and BadMessage."""
        deadline = time.monotonic() + timeout_s
        self._read_until(wire.LENGTH_BYTES, deadline, timeout_s)
        end = wire.frame_bytes(self._unread, max_bytes)
        self._read_until(end, deadline, timeout_s)
        return self._take(end)

    def receive_nowait(self, *, max_bytes: int) -> RankMessage | None:
        """Read what has arrived; returns a message once it is complete. Raises ConnectionLost, and BadMessage."""
        try:
            self._socket.setblocking(False)
            self._read_arrived(wire.LENGTH_BYTES + max_bytes)
        except OSError as error:
            raise ConnectionLost(f"the connection is closed: {error}") from None
        if len(self._unread) < wire.LENGTH_BYTES or len(self._unread) < (
            end := wire.frame_bytes(self._unread, max_bytes)
        ):
            return None
        return self._take(end)

    def shutdown(self) -> None:
        """Shut the socket down, from any thread; wakes blocked readers at both ends."""
        with contextlib.suppress(OSError):
            # Not TLS's own, which would leave another thread with a socket that reads without it.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Shut down and close the socket."""
        self.shutdown()
        self._socket.close()

    def _read_arrived(self, max_bytes: int) -> None:
        """Read what has arrived, without waiting; raises ConnectionLost when the other end has closed, and OSError."""
        try:
            read = self._socket.recv(max_bytes)
        except WOULD_BLOCK:
            return
        if not read:
            raise ConnectionLost("it has closed the connection")
        self._unread += read

    def _take(self, end: int) -> RankMessage:
        with memoryview(self._unread) as unread:
            message = wire.decode(DECODER, unread[wire.LENGTH_BYTES : end])
        del self._unread[:end]
        return message

    def _read_until(self, num_bytes: int, deadline: float, timeout_s: float) -> None:
        while len(self._unread) < num_bytes:
            try:
                left_s = deadline - time.monotonic()
                self._socket.settimeout(None if left_s == math.inf else max(left_s, 1e-3))
                read = self._socket.recv(max(READ_BYTES, num_bytes - len(self._unread)))
            except TimeoutError:
                raise ConnectionLost(f"it has sent nothing for {timeout_s:g} s") from None
            except OSError as error:
                raise ConnectionLost(f"the connection is closed: {error}") from None
            if not read:
                raise ConnectionLost("it has closed the connection")
            self._unread += read


def any_closed(connections: Sequence[ControlConnection], timeout_s: float) -> bool:
    """Wait until one of the connections is closed at its other end; returns whether one is."""
    poller = select.poll()
    for connection in connections:
        if (descriptor := connection.fileno()) >= 0:
            poller.register(descriptor, select.POLLHUP | getattr(select, "POLLRDHUP", 0))
    return any(events & ~select.POLLNVAL for _, events in poller.poll(1000 * timeout_s))


def close_all(connections: Iterable[ControlConnection]) -> None:
    """Close all of them."""
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.close()


def _poll(connected: socket.socket, wanted: int, timeout_s: float) -> int:
    poller = select.poll()
    poller.register(connected, wanted)
    return next((events for _, events in poller.poll(1000 * timeout_s)), 0)
