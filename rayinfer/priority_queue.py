"""Queue by priority, then by weighted fair queueing among tenants: used by router and scheduler."""

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from rayinfer.errors import ConfigError

T = TypeVar("T")

BACKGROUND_PRIORITY = 10  # the lowest: of work that has idle capacity only, as rows of batches
BACKGROUND_LEVELS = 8640  # further ones that it counts as below the others: with 10 s each a day
_FEWEST_TENANTS_TO_PRUNE = 1024
_FEWEST_ENTRIES_TO_COMPACT = 64


def is_background(priority: int) -> bool:
    """Whether work of this priority gets idle capacity only."""
    return priority >= BACKGROUND_PRIORITY


@dataclass(frozen=True, slots=True, eq=False)
class QueueEntry(Generic[T]):
    """An item's position in the order, fixed when it is first pushed."""

    item: T
    key: float  # seconds; the smallest goes first
    priority: int
    start: float  # seconds: start tag of fair queueing
    deadline: float  # infinity where there is none
    order: int  # how many were pushed before
    tenant: str
    cost: float  # expected service; 0: not charged to its tenant
    weight: float  # of its tenant

    @property
    def sort_key(self) -> tuple[float, float, int]:
        """The sort key of entries: the smallest goes first."""
        return (self.key, self.deadline, self.order)


@dataclass(slots=True)
class _Backlog:
    """One tenant's waiting requests."""

    weight: float
    num_waiting: dict[int, int]  # by priority

    def reaches(self, priority: int) -> bool:
        """Whether it has requests waiting of this or a more urgent priority."""
        return any(level <= priority for level in self.num_waiting)


class PriorityQueue(Generic[T]):
    """A heap by a key that never changes: nothing is sorted again, aged or scanned.

    key = priority x ageing_s + start; equal keys go by deadline, then by order of arrival. The background priority has
    BACKGROUND_LEVELS more, so that ageing brings it before another priority after a day only.
    start = max(arrival, virtual time, finish of the tenant's earlier requests of this or a more urgent priority);
    finish = start + cost / (weight x rate). Without costs, start = arrival: first come, first served within each
    priority, and priority p waits at most p x ageing_s longer than priority 0.

    With costs this is weighted fair queueing by start tags (start-time fair queueing, Goyal, Vin and Cheng 1996).
    Virtual time is the latest start tag served, and it also advances by cost / (W x rate) with each service, where W is
    the sum of weights of the tenants that have requests waiting (as in WF2Q+, Bennett and Zhang 1997). By start tags
    alone it would stand still while every request served is the first of a new tenant. A tenant is backlogged at a
    priority while it has requests waiting of that or a more urgent one. Its next start there follows from its own
    finish and the latest start tag served, not from virtual time, which may be ahead: so its share is exact.
    An empty queue resets virtual time and all finishes.

    Bound on waiting. A request r is pushed at virtual time V, with R the latest start tag served and Q the cost of what
    waits. Let H = r.key - p0 x ageing_s, with p0 the most urgent priority in use, k the number of priorities in use, W
    the largest sum of weights of waiting tenants, N the largest number of them, L the largest cost. Before r is served,
    others receive at most

        Q + W x rate x ((H - V) + k x (H - R)) + (k x N + 1) x L.

    Proof. What precedes r was waiting (Q), or was pushed later with a start of at most H. (1) Each service of cost c
    advances virtual time by c / (W x rate) or more, so it is beyond H after a service of W x rate x (H - V) + L. Then a
    tenant that is not backlogged at a priority starts beyond H there, and so do its requests that follow while it is.
    (2) A tenant that is backlogged at a priority then adds requests there whose starts are at least R and
    cost / (weight x rate) apart, so those up to H cost at most weight x rate x (H - R) + L: for all tenants and
    priorities together W x rate x k x (H - R) + k x N x L.
    A new tenant (start V, H - V = (priority - p0) x ageing_s) is bounded alike. Costs are those that `charge` has
    corrected. What is served out of order by `serve` comes on top, unless it waited before r.
    """

    def __init__(
        self,
        ageing_s: float = 10.0,
        rate: float = 1.0,
        orders: Iterator[int] | None = None,
    ) -> None:
        """Take the cost units served per second as `rate`.

        Queues whose entries are compared with each other share their numbers, `orders`.
        """
        self._ageing_s = self._rate = 1.0
        self.change(ageing_s=ageing_s, rate=rate)
        self.latest_start = self.virtual_time = -math.inf  # the former is of those served in turn
        self._backlogs: dict[str, _Backlog] = {}  # of tenants with requests of a cost waiting
        self._total_weight = 0.0  # of these tenants
        self._tenant_finish: dict[str, dict[int, float]] = {}  # by priority
        self._prune_above = _FEWEST_TENANTS_TO_PRUNE
        self._orders = itertools.count() if orders is None else orders
        self._waiting: dict[int, QueueEntry[T]] = {}  # by order
        # Entries are (key, deadline, order). One whose order no longer waits is dead, and skipped when it comes up.
        self._heap: list[tuple[float, float, int]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def change(self, *, ageing_s: float | None = None, rate: float | None = None) -> None:
        """Order requests that are pushed from now on by other settings; raises ConfigError for invalid ones."""
        if ageing_s is not None and not 0 <= ageing_s < math.inf:
            raise ConfigError(f"ageing_s must be at least 0 and finite, got {ageing_s}")
        if rate is not None and not 0 < rate < math.inf:
            raise ConfigError(f"rate must be above 0 and finite, got {rate}")
        self._ageing_s = self._ageing_s if ageing_s is None else ageing_s
        self._rate = self._rate if rate is None else rate

    def push(
        self,
        item: T,
        *,
        priority: int,
        arrival: float,
        deadline: float | None = None,
        tenant: str = "",
        cost: float = 0.0,
        weight: float = 1.0,
    ) -> QueueEntry[T]:
        """Add an item that arrived at `arrival` seconds, of a tenant with this weight; all times are of one clock."""
        if not self._waiting:
            self._tenant_finish.clear()
            self.latest_start = self.virtual_time = arrival
            self._total_weight = 0.0
        finishes = self._tenant_finish.get(tenant, {})
        start = arrival
        if cost > 0:
            backlog = self._backlogs.get(tenant)
            is_backlogged = backlog is not None and backlog.reaches(priority)
            start = max(arrival, self.latest_start if is_backlogged else self.virtual_time)
        for level, finish in finishes.items():
            if level <= priority and finish > start:
                start = finish
        if cost > 0:
            finishes[priority] = start
            self._tenant_finish[tenant] = finishes
            self.charge(tenant, priority, cost, weight)
            self._prune_tenants(max(arrival, self.virtual_time))
        entry = QueueEntry(
            item=item,
            key=_level(priority) * self._ageing_s + start,
            priority=priority,
            start=start,
            deadline=math.inf if deadline is None else deadline,
            order=next(self._orders),
            tenant=tenant,
            cost=cost,
            weight=weight,
        )
        self._insert(entry)
        return entry

    def push_back(self, entry: QueueEntry[T]) -> None:
        """Return a popped entry to its former position: it did not fit, or was preempted."""
        if entry.order in self._waiting:
            raise RuntimeError(f"entry {entry.order} is waiting already")
        self._insert(entry)

    def peek(self) -> QueueEntry[T] | None:
        """Return the first request, which stays queued."""
        while self._heap:
            entry = self._waiting.get(self._heap[0][2])
            if entry is not None:
                return entry
            heapq.heappop(self._heap)
        return None

    def pop(self) -> QueueEntry[T] | None:
        """Serve the first request."""
        entry = self.peek()
        if entry is not None:
            self.serve(entry)
        return entry

    def serve(self, entry: QueueEntry[T]) -> None:
        """Serve a waiting request, in or out of order."""
        if entry is self.peek():
            self.latest_start = max(self.latest_start, entry.start)
        if entry.cost > 0:
            total_weight = max(self._total_weight, entry.weight)  # the sum may have rounding errors
            advance = entry.cost / (total_weight * self._rate)
            self.virtual_time = max(self.virtual_time, self.latest_start) + advance
        self.remove(entry)

    def remove(self, entry: QueueEntry[T]) -> bool:
        """Remove a request without service; returns whether it was waiting."""
        if self._waiting.get(entry.order) is not entry:
            return False
        del self._waiting[entry.order]
        self._reduce_backlog(entry)
        if self._heap[0][2] == entry.order:
            heapq.heappop(self._heap)
        elif len(self._heap) > max(2 * len(self._waiting), _FEWEST_ENTRIES_TO_COMPACT):
            self._heap = [waiting.sort_key for waiting in self._waiting.values()]
            heapq.heapify(self._heap)
        return True

    def charge(self, tenant: str, priority: int, cost: float, weight: float = 1.0) -> None:
        """Charge a tenant for so much more, or less, than the cost given to `push`.

        Its requests of this or a less urgent priority that come from now on start later by as much. Those that wait
        already do not, as positions are fixed, and its more urgent ones never do. So a tenant with requests waiting at
        k priorities has up to k shares until those are served that waited at first; in the long run it has one.
        """
        finishes = self._tenant_finish.get(tenant, {})
        advance_s = cost / (weight * self._rate)
        for level in finishes:
            if level >= priority:
                finishes[level] += advance_s

    def _insert(self, entry: QueueEntry[T]) -> None:
        self._waiting[entry.order] = entry
        heapq.heappush(self._heap, entry.sort_key)
        if entry.cost > 0:
            backlog = self._backlogs.get(entry.tenant)
            if backlog is None:
                backlog = self._backlogs[entry.tenant] = _Backlog(entry.weight, {})
                self._total_weight += entry.weight
            backlog.num_waiting[entry.priority] = backlog.num_waiting.get(entry.priority, 0) + 1

    def _reduce_backlog(self, entry: QueueEntry[T]) -> None:
        if entry.cost <= 0:
            return
        backlog = self._backlogs[entry.tenant]
        backlog.num_waiting[entry.priority] -= 1
        if not backlog.num_waiting[entry.priority]:
            del backlog.num_waiting[entry.priority]
        if not backlog.num_waiting:
            del self._backlogs[entry.tenant]
            self._total_weight -= backlog.weight

    def _prune_tenants(self, now: float) -> None:
        """Drop tenants whose finish has passed, each time their number has doubled: clients choose the names."""
        if len(self._tenant_finish) <= self._prune_above:
            return
        self._tenant_finish = {
            tenant: finishes
            for tenant, finishes in self._tenant_finish.items()
            if tenant in self._backlogs or max(finishes.values()) > now
        }
        self._prune_above = max(_FEWEST_TENANTS_TO_PRUNE, 2 * len(self._tenant_finish))


def _level(priority: int) -> int:
    """Return the levels that a priority counts as."""
    return priority + BACKGROUND_LEVELS if is_background(priority) else priority
