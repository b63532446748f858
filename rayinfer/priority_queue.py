"""The one order in which waiting requests get their turn, in the router and in the scheduler."""

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from rayinfer.errors import ConfigError

T = TypeVar("T")

_FEWEST_TENANTS_TO_PRUNE = 1024
_FEWEST_ENTRIES_TO_COMPACT = 64


@dataclass(frozen=True, slots=True, eq=False)
class Ticket(Generic[T]):
    """An item's place in the order, fixed when it is first pushed."""

    item: T
    key: float  # seconds; the smallest goes first
    priority: int
    start: float  # seconds: when its tenant's share comes to it
    deadline: float  # infinity where there is none
    order: int  # how many were pushed before

    @property
    def place(self) -> tuple[float, float, int]:
        """What tickets are compared by: the smallest goes first."""
        return (self.key, self.deadline, self.order)


class PriorityQueue(Generic[T]):
    """A heap by a key that never changes, so nothing is ever sorted again, aged or scanned.

    key = priority x ageing_s + max(arrival, tenant_finish); equal keys go by deadline, then by order of arrival.
    Priority p waits at most p x ageing_s longer than priority 0 would, so nobody starves. `tenant_finish` is when a
    tenant's earlier requests that matter as much or more would be done had it its share to itself: it grows by
    cost / (weight x rate). A tenant that asks for more than its share queues behind its own requests, others pass.
    Without costs this is plain first come, first served within each priority.

    The rate is an estimate, so shares are counted from where the queue has come (start-time fair queueing, Goyal,
    Vin and Cheng 1996): whoever comes later than that starts there, and an empty queue forgets what anybody owes.
    """

    def __init__(
        self,
        ageing_s: float = 10.0,
        rate: float = 1.0,
        weights: Mapping[str, float] | None = None,
        orders: Iterator[int] | None = None,
    ) -> None:
        """Take the cost units served per second as `rate`, and tenants' weights where they are not 1.

        Queues whose tickets are compared with each other share the numbers of their tickets, `orders`.
        """
        self._ageing_s = self._rate = 1.0
        self._weights: dict[str, float] = {}
        self.change(ageing_s=ageing_s, rate=rate, weights=weights or {})
        self._reached = -math.inf  # the latest start of those whose turn has come
        self._tenant_finish: dict[str, dict[int, float]] = {}  # by priority
        self._prune_above = _FEWEST_TENANTS_TO_PRUNE
        self._orders = itertools.count() if orders is None else orders
        self._waiting: dict[int, Ticket[T]] = {}  # by order
        # Entries are (key, deadline, order). One whose order no longer waits is dead, and skipped when it comes up.
        self._heap: list[tuple[float, float, int]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def change(
        self,
        *,
        ageing_s: float | None = None,
        rate: float | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """Order those who come from now on by other settings; raises ConfigError for what cannot work."""
        if ageing_s is not None and not 0 <= ageing_s < math.inf:
            raise ConfigError(f"ageing_s must be at least 0 and finite, got {ageing_s}")
        shares = {f"weight of {tenant!r}": weight for tenant, weight in (weights or {}).items()}
        for name, value in (({} if rate is None else {"rate": rate}) | shares).items():
            if not 0 < value < math.inf:
                raise ConfigError(f"{name} must be above 0 and finite, got {value}")
        self._ageing_s = self._ageing_s if ageing_s is None else ageing_s
        self._rate = self._rate if rate is None else rate
        self._weights = self._weights if weights is None else dict(weights)

    def push(
        self,
        item: T,
        *,
        priority: int,
        arrival: float,
        deadline: float | None = None,
        tenant: str = "",
        cost: float = 0.0,
    ) -> Ticket[T]:
        """Add an item that arrived at `arrival` seconds; all times are of one clock, the caller's."""
        if not self._waiting:
            self._tenant_finish.clear()
            self._reached = -math.inf
        finishes = self._tenant_finish.get(tenant, {})
        start = arrival if cost <= 0 else max(arrival, self._reached)
        for level, finish in finishes.items():
            if level <= priority and finish > start:
                start = finish
        if cost > 0:
            finishes[priority] = start
            self._tenant_finish[tenant] = finishes
            self.charge(tenant, priority, cost)
            self._prune_tenants(max(arrival, self._reached))
        ticket = Ticket(
            item=item,
            key=priority * self._ageing_s + start,
            priority=priority,
            start=start,
            deadline=math.inf if deadline is None else deadline,
            order=next(self._orders),
        )
        self._insert(ticket)
        return ticket

    def push_back(self, ticket: Ticket[T]) -> None:
        """Return what was popped to the place it had: it did not fit, or was preempted."""
        if ticket.order in self._waiting:
            raise RuntimeError(f"ticket {ticket.order} is waiting already")
        self._insert(ticket)

    def peek(self) -> Ticket[T] | None:
        """Look at whose turn is next."""
        while self._heap:
            ticket = self._waiting.get(self._heap[0][2])
            if ticket is not None:
                return ticket
            heapq.heappop(self._heap)
        return None

    def pop(self) -> Ticket[T] | None:
        """Take whose turn is next."""
        ticket = self.peek()
        if ticket is not None:
            heapq.heappop(self._heap)
            del self._waiting[ticket.order]
            self._reached = max(self._reached, ticket.start)
        return ticket

    def remove(self, ticket: Ticket[T]) -> bool:
        """Take one out of turn; returns whether it was waiting."""
        if self._waiting.get(ticket.order) is not ticket:
            return False
        del self._waiting[ticket.order]
        if len(self._heap) > max(2 * len(self._waiting), _FEWEST_ENTRIES_TO_COMPACT):
            self._heap = [waiting.place for waiting in self._waiting.values()]
            heapq.heapify(self._heap)
        return True

    def charge(self, tenant: str, priority: int, cost: float) -> None:
        """Charge a tenant for so much more, or less, than `push` was told.

        Its less urgent requests that come from now on are later by as much. Those that wait already are not, for places
        are fixed, and its more urgent ones never are. So who keeps requests waiting at k priorities has up to k shares
        until those are served that waited at first; what follows them is late, and in the long run it has one share.
        """
        finishes = self._tenant_finish.get(tenant, {})
        share_s = cost / (self._weights.get(tenant, 1.0) * self._rate)
        for level in finishes:
            if level >= priority:
                finishes[level] += share_s

    def _insert(self, ticket: Ticket[T]) -> None:
        self._waiting[ticket.order] = ticket
        heapq.heappush(self._heap, ticket.place)

    def _prune_tenants(self, now: float) -> None:
        """Drop tenants that owe nothing, each time their number has doubled: names are the clients' to invent."""
        if len(self._tenant_finish) <= self._prune_above:
            return
        self._tenant_finish = {
            tenant: finishes for tenant, finishes in self._tenant_finish.items() if max(finishes.values()) > now
        }
        self._prune_above = max(_FEWEST_TENANTS_TO_PRUNE, 2 * len(self._tenant_finish))
