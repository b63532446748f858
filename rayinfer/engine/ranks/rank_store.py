"""The store through which torch's groups find each other: kept by rank 0, reached over a line to each other rank.

torch's own TCPStore listens at a port where any client may read and change everything. Here only ranks can connect,
which have proved that they know the key; and waits for what a lost rank would have stored end
when the connection is closed.
"""

import contextlib
import select
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch.distributed import Store  # type: ignore[attr-defined]

from rayinfer.engine.ranks.control_connection import ControlLine, LineLost
from rayinfer.engine.ranks.plan_codec import BadMessage
from rayinfer.engine.ranks.rendezvous_messages import StoreAnswer, StoreCall

ANSWER_S = 60.0  # for rank 0, which lives: whether it does is the beats' affair
READ_S = 1.0  # for the rest of a call that has begun to come
MAX_CALL_BYTES = 1 << 20
POLL_S = 0.005  # between two looks for a key that another rank is about to set

Ask = Callable[[StoreCall], StoreAnswer]


class RankStore(Store):
    """A store for torch; usable from several threads. It has to outlive what is built on it."""

    def __init__(self, ask: Ask, timeout_s: float) -> None:
        super().__init__()
        self._ask = ask
        self._timeout_s = timeout_s

    def set(self, key: str, value: bytes | str) -> None:
        """Store a value."""
        self._ask(StoreCall("set", key, value.encode() if isinstance(value, str) else bytes(value)))

    def get(self, key: str) -> bytes:
        """Wait for a value; raises TimeoutError, and LineLost when rank 0 has hung up."""
        deadline = time.monotonic() + self._timeout_s
        while (value := self._ask(StoreCall("get", key)).value) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no rank has set {key} within {self._timeout_s:g} s")
            time.sleep(POLL_S)
        return value

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait for all of these keys."""
        for key in keys:
            self.get(key)

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all of these keys are there."""
        return all(self._ask(StoreCall("get", key)).value is not None for key in keys)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which begins at 0, and return it."""
        return int(self._ask(StoreCall("add", key, amount=amount)).value or b"0")

    def delete_key(self, key: str) -> bool:
        """Remove a key; returns whether it was there."""
        was_there = self.check([key])
        self._ask(StoreCall("delete", key))
        return was_there

    def clone(self) -> "RankStore":
        """Return what another thread may use: itself."""
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

    def answer(self, call: StoreCall) -> StoreAnswer:
        """Carry one operation out; raises LineLost once the store is closed."""
        if self._is_closed:
            raise LineLost("the group has ended")
        with self._lock:
            if call.operation == "set":
                self._values[call.key] = call.value
            elif call.operation == "add":
                self._values[call.key] = str(int(self._values.get(call.key, b"0")) + call.amount).encode()
            elif call.operation == "delete":
                self._values.pop(call.key, None)
            return StoreAnswer(self._values.get(call.key))

    def serve(self, lines: Sequence[ControlLine]) -> None:
        """Answer the other ranks from a thread, until all have hung up or been hung up on."""
        threading.Thread(target=_serve, args=(self, list(lines)), name="store", daemon=True).start()


def ask_over(line: ControlLine) -> Ask:
    """Make the function by which another rank has rank 0 carry an operation out; it raises LineLost."""
    lock = threading.Lock()

    def ask(call: StoreCall) -> StoreAnswer:
        with lock:
            line.send(call, ANSWER_S)
            answer = line.receive(ANSWER_S)
        if not isinstance(answer, StoreAnswer):
            raise BadMessage(f"rank 0 says {answer!r:.80} instead of what is stored")
        return answer

    return ask


def _serve(values: StoreValues, lines: list[ControlLine]) -> None:
    while lines:
        poller = select.poll()
        for line in lines:
            poller.register(line, select.POLLIN)
        ready = {descriptor for descriptor, _ in poller.poll()}
        for line in list(lines):
            if line.fileno() in ready and not _answer_one(values, line):
                lines.remove(line)
                line.close()


def _answer_one(values: StoreValues, line: ControlLine) -> bool:
    """Answer one call; returns whether more may come."""
    with contextlib.suppress(LineLost, BadMessage, ValueError):
        call = line.receive(READ_S, max_bytes=MAX_CALL_BYTES)
        if isinstance(call, StoreCall):
            line.send(values.answer(call), READ_S)
            return True
    return False
