"""Claims of batches' rows by routers; in memory, for routers report what they compute."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rayinfer.batches.records import RowKey

ROUTER_SILENT_S = 15.0


@dataclass(slots=True)
class _Router:
    heard_s: float
    running: set[RowKey] = field(default_factory=set)


@dataclass(slots=True)
class _Queue:
    """Rows of one batch that wait for a router."""

    owner: str
    pending: deque[int]
    num_running: int = 0
    is_stopped: bool = False
    done: set[int] = field(default_factory=set)  # lines with a result, whichever router it came from


class Claims:
    """Rows that wait and rows that run; owners take turns, each with its oldest batch first."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queues: dict[str, _Queue] = {}  # by batch, oldest first
        self._routers: dict[str, _Router] = {}

    @property
    def batches(self) -> list[str]:
        """Name the batches with rows that wait or run."""
        return list(self._queues)

    @property
    def num_pending(self) -> int:
        """Number of rows that no router has."""
        return sum(len(queue.pending) for queue in self._queues.values())

    def add(self, batch_id: str, owner: str, lines: Iterable[int]) -> None:
        """Add the rows of a batch that have no result."""
        self._queues[batch_id] = _Queue(owner, deque(lines))

    def take_running(self, router: str, running: Iterable[RowKey], done: Iterable[RowKey]) -> None:
        """Note what a router computes; what it was given and neither computes nor has done waits again."""
        now_s = self._clock()
        before = self._routers.get(router) or _Router(now_s)
        claimed = set(running)
        done = set(done)
        for key in done:
            self._finish(key)
        self._routers[router] = _Router(now_s, claimed)
        for key in before.running - claimed:
            self._release(key)
        for key in claimed - before.running:  # given by an owner before this one
            self._claim_again(router, key)
        for name in [name for name, each in self._routers.items() if now_s - each.heard_s > ROUTER_SILENT_S]:
            for key in self._routers.pop(name).running:
                self._release(key)

    def give(self, router: str, number: int) -> list[RowKey]:
        """Give rows to a router."""
        given: list[RowKey] = []
        while len(given) < number and (batch_id := self._next_batch()) is not None:
            queue = self._queues[batch_id]
            key = RowKey(batch_id, queue.pending.popleft())
            queue.num_running += 1
            given.append(key)
        self._routers[router].running.update(given)
        return given

    def stop(self, batch_id: str) -> None:
        """Let no more rows of a batch run; those that run are to be given up or to end."""
        if (queue := self._queues.get(batch_id)) is not None:
            queue.pending.clear()
            queue.is_stopped = True

    def drop(self, batch_id: str) -> None:
        """Forget a batch."""
        self._queues.pop(batch_id, None)

    def is_idle(self, batch_id: str) -> bool:
        """Return whether no row of a batch waits or runs."""
        queue = self._queues.get(batch_id)
        return queue is None or not (queue.pending or queue.num_running)

    def _next_batch(self) -> str | None:
        """Return the oldest batch of the owner with the fewest rows that run."""
        running: dict[str, int] = {}
        oldest: dict[str, str] = {}
        for batch_id, queue in self._queues.items():
            running[queue.owner] = running.get(queue.owner, 0) + queue.num_running
            if queue.pending:
                oldest.setdefault(queue.owner, batch_id)
        return oldest[min(oldest, key=running.__getitem__)] if oldest else None

    def _finish(self, key: RowKey) -> None:
        queue = self._queues.get(key.batch_id)
        if queue is not None:
            queue.done.add(key.line)
            if key.line in queue.pending:
                queue.pending.remove(key.line)

    def _release(self, key: RowKey) -> None:
        queue = self._queues.get(key.batch_id)
        if queue is None:
            return
        queue.num_running -= 1
        if key.line not in queue.done and not queue.is_stopped:
            queue.pending.appendleft(key.line)

    def _claim_again(self, router: str, key: RowKey) -> None:
        """Take a row out of the queue that a router computes without having been given it here."""
        queue = self._queues.get(key.batch_id)
        if queue is not None and key.line in queue.pending:
            queue.pending.remove(key.line)
            queue.num_running += 1
        else:
            self._routers[router].running.discard(key)  # another router has it, or it is done
