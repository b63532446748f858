"""The store through which torch's groups find each other: kept by rank 0, reached over a connection of each rank.

torch's own TCPStore listens at a port where any client may read and change everything. Here only authenticated ranks
have access, and a wait for a value of a lost rank ends when the connection is closed.
"""

import contextlib
import select
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch.distributed import Store  # type: ignore[attr-defined]

from rayinfer.engine.ranks.control_connection import ConnectionLost, ControlConnection
from rayinfer.engine.ranks.rank_messages import StoreReply, StoreRequest
from rayinfer.wire import BadMessage

REPLY_S = 60.0  # for rank 0, whose life heartbeats watch
READ_S = 1.0  # for the rest of a request that has begun to arrive
MAX_REQUEST_BYTES = 1 << 20
POLL_S = 0.005  # between two reads of a key that another rank is about to set

Call = Callable[[StoreRequest], StoreReply]


class RankStore(Store):
    """A store for torch; usable from several threads. It has to outlive what is built on it."""

    def __init__(self, call: Call, timeout_s: float) -> None:
        super().__init__()
        self._call = call
        self._timeout_s = timeout_s

    def set(self, key: str, value: bytes | str) -> None:
        """Store a value."""
        self._call(StoreRequest("set", key, value.encode() if isinstance(value, str) else bytes(value)))

    def get(self, key: str) -> bytes:
        """Wait for a value; raises TimeoutError, and ConnectionLost when rank 0 has closed."""
        deadline = time.monotonic() + self._timeout_s
        while (value := self._call(StoreRequest("get", key)).value) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no rank has set {key} within {self._timeout_s:g} s")
            time.sleep(POLL_S)
        return value

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait for all of these keys."""
        for key in keys:
            self.get(key)

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all of these keys are set."""
        return all(self._call(StoreRequest("get", key)).value is not None for key in keys)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which begins at 0, and return it."""
        return int(self._call(StoreRequest("add", key, amount=amount)).value or b"0")

    def delete_key(self, key: str) -> bool:
        """Remove a key; returns whether it was set."""
        was_set = self.check([key])
        self._call(StoreRequest("delete", key))
        return was_set

    def clone(self) -> "RankStore":
        """Return a store for another thread: itself."""
        return self


class StoreValues:
    """The values themselves, on rank 0."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def close(self) -> None:
        """Serve no more, and end all waits for keys in this process."""
        self._is_closed = True

    def run(self, request: StoreRequest) -> StoreReply:
        """Run one operation; raises ConnectionLost once the store is closed."""
        if self._is_closed:
            raise ConnectionLost("the group has ended")
        with self._lock:
            if request.operation == "set":
                self._values[request.key] = request.value
            elif request.operation == "add":
                self._values[request.key] = str(int(self._values.get(request.key, b"0")) + request.amount).encode()
            elif request.operation == "delete":
                self._values.pop(request.key, None)
            return StoreReply(self._values.get(request.key))

    def serve(self, connections: Sequence[ControlConnection]) -> None:
        """Serve the other ranks from a thread, until all connections are closed at either end."""
        threading.Thread(target=_serve, args=(self, list(connections)), name="store", daemon=True).start()


def call_over(connection: ControlConnection) -> Call:
    """Make the function by which another rank has rank 0 run an operation; it raises ConnectionLost."""
    lock = threading.Lock()

    def call(request: StoreRequest) -> StoreReply:
        with lock:
            connection.send(request, REPLY_S)
            reply = connection.receive(REPLY_S)
        if not isinstance(reply, StoreReply):
            raise BadMessage(f"rank 0 sent {reply!r:.80} instead of a value of the store")
        return reply

    return call


def _serve(values: StoreValues, connections: list[ControlConnection]) -> None:
    while connections:
        poller = select.poll()
        for connection in connections:
            poller.register(connection, select.POLLIN)
        ready = {descriptor for descriptor, _ in poller.poll()}
        for connection in list(connections):
            if connection.fileno() in ready and not _serve_one(values, connection):
                connections.remove(connection)
                connection.close()


def _serve_one(values: StoreValues, connection: ControlConnection) -> bool:
    """Serve one request; returns whether more may come."""
    with contextlib.suppress(ConnectionLost, BadMessage, ValueError):
        request = connection.receive(READ_S, max_bytes=MAX_REQUEST_BYTES)
        if isinstance(request, StoreRequest):
            connection.send(values.run(request), READ_S)
            return True
    return False
