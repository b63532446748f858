"""The connection between rank 0 and one other rank: plans out, results and failures back.

Plain TCP, because messages must not wait for the other end to ask for them, and because a close shows at once that
the other process is gone. Connections between ranks of one machine stay on it.
"""

import contextlib
import math
import select
import socket
import time
from collections.abc import Sequence

from rayinfer.engine.ranks.plan_codec import AnyMessage, BadMessage, decode, encode
from rayinfer.errors import RayinferError

LENGTH_BYTES = 4
MAX_MESSAGE_BYTES = 1 << 30
READ_BYTES = 1 << 16  # one read brings a whole plan, unless it is a long one


class LineLost(RayinferError):
    """The other rank is gone, or has sent nothing for too long."""


class ControlLine:
    """One end; for one thread at a time, but for `hang_up`."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._unread = bytearray()

    @property
    def own_host(self) -> str:
        """The address by which the other end sees this one."""
        host: str = self._socket.getsockname()[0]
        return host

    @property
    def has_unread(self) -> bool:
        """Whether unread data has come, or the other end has closed."""
        if self._socket.fileno() < 0:
            return False
        return bool(self._unread) or bool(_wait_for(self._socket, select.POLLIN, 0.0))

    def fileno(self) -> int:
        """The descriptor, to wait for several connections at once; -1 once it is closed."""
        return self._socket.fileno()

    def send(self, message: AnyMessage, timeout_s: float) -> None:
        """Send a message; raises LineLost."""
        self.send_bytes(framed(message), timeout_s)

    def send_bytes(self, frame: bytes, timeout_s: float) -> None:
        """Send what `framed` has packed, which may go to several ranks; raises LineLost.

        What comes meanwhile is read: two ends that send much would wait for each other.
        """
        unsent, deadline = memoryview(frame), time.monotonic() + timeout_s
        try:
            self._socket.setblocking(False)
            while unsent:
                with contextlib.suppress(BlockingIOError):
                    unsent = unsent[self._socket.send(unsent) :]
                    continue
                if (left_s := deadline - time.monotonic()) <= 0:
                    raise LineLost(f"it has read nothing for {timeout_s:g} s")
                events = _wait_for(self._socket, select.POLLOUT | select.POLLIN, left_s)
                if events & select.POLLIN and (read := self._socket.recv(READ_BYTES)):
                    self._unread += read
                elif events & ~select.POLLOUT:
                    raise LineLost("it has hung up")
        except OSError as error:
            raise LineLost(f"the line is closed: {error}") from None

    def receive(self, timeout_s: float = math.inf, *, max_bytes: int = MAX_MESSAGE_BYTES) -> AnyMessage:
        """Wait for the other end's next message; raises LineLost, and BadMessage."""
        deadline = time.monotonic() + timeout_s
        self._read_until(LENGTH_BYTES, deadline, timeout_s)
        end = self._end_of_first(max_bytes)
        self._read_until(end, deadline, timeout_s)
        return self._take(end)

    def receive_now(self, *, max_bytes: int) -> AnyMessage | None:
        """Read what has come, and return a message if it is whole by now; raises LineLost, and BadMessage."""
        try:
            self._socket.setblocking(False)
            read = self._socket.recv(LENGTH_BYTES + max_bytes)
        except BlockingIOError:
            return None
        except OSError as error:
            raise LineLost(f"the line is closed: {error}") from None
        if not read:
            raise LineLost("it has hung up")
        self._unread += read
        if len(self._unread) < LENGTH_BYTES or len(self._unread) < (end := self._end_of_first(max_bytes)):
            return None
        return self._take(end)

    def hang_up(self) -> None:
        """Shut the socket down, from any thread; wakes blocked readers at both ends."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Shut down and close the socket."""
        self.hang_up()
        self._socket.close()

    def _end_of_first(self, max_bytes: int) -> int:
        length = int.from_bytes(self._unread[:LENGTH_BYTES], "big")
        if length > max_bytes:
            raise BadMessage(f"a message of {length} bytes, at most {max_bytes} are taken")
        return LENGTH_BYTES + length

    def _take(self, end: int) -> AnyMessage:
        with memoryview(self._unread) as unread:
            message = decode(unread[LENGTH_BYTES:end])
        del self._unread[:end]
        return message

    def _read_until(self, num_bytes: int, deadline: float, timeout_s: float) -> None:
        while len(self._unread) < num_bytes:
            try:
                left_s = deadline - time.monotonic()
                self._socket.settimeout(None if left_s == math.inf else max(left_s, 1e-3))
                read = self._socket.recv(max(READ_BYTES, num_bytes - len(self._unread)))
            except TimeoutError:
                raise LineLost(f"it has said nothing for {timeout_s:g} s") from None
            except OSError as error:
                raise LineLost(f"the line is closed: {error}") from None
            if not read:
                raise LineLost("it has hung up")
            self._unread += read


def framed(message: AnyMessage) -> bytes:
    """Pack a message as it goes over a line: four bytes of length, and the message."""
    data = encode(message)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def hung_up(lines: Sequence[ControlLine], timeout_s: float) -> bool:
    """Wait until one of the lines is closed at its other end; returns whether one is."""
    poller = select.poll()
    for line in lines:
        if (descriptor := line.fileno()) >= 0:
            poller.register(descriptor, select.POLLHUP | getattr(select, "POLLRDHUP", 0))
    return any(events & ~select.POLLNVAL for _, events in poller.poll(1000 * timeout_s))


def _wait_for(connection: socket.socket, wanted: int, timeout_s: float) -> int:
    poller = select.poll()
    poller.register(connection, wanted)
    return next((events for _, events in poller.poll(1000 * timeout_s)), 0)
