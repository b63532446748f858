"""Dynamic batcher: batches of items within a budget of cost, made when the model is free."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from rayinfer.errors import ConfigError, EngineDead, InvalidParameter, QueueFull
from rayinfer.predictors.arrival_statistics import ArrivalStatistics
from rayinfer.predictors.cost_model import CostModel
from rayinfer.priority_queue import PriorityQueue, QueueEntry, is_background

T = TypeVar("T")

WINDOW_BUDGETS = 8  # of items in order, from which a padded batch takes those of similar length
WINDOW_ITEMS = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchingSettings:
    """Bounds on batches and on waiting."""

    max_wait_s: float = 0.01  # for further arrivals while the model is free
    max_items: int = 0  # of a batch; 0: no bound
    max_waiting_cost: int = 0  # of all items that wait; 0: no bound, as routers' credits bound it
    is_padded: bool = False  # a batch costs its longest item times their number
    ageing_s: float = 10.0  # what one level of priority is worth

    def __post_init__(self) -> None:
        if not 0 <= self.max_wait_s < math.inf:
            raise ConfigError(f"max_wait_s must be at least 0 and finite, got {self.max_wait_s}")
        if self.max_items < 0 or self.max_waiting_cost < 0:
            raise ConfigError("max_items and max_waiting_cost must be at least 0")


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting(Generic[T]):
    name: str
    item: T
    cost: int
    deadline: float


class DynamicBatcher(Generic[T]):
    """Items in order of priority and arrival, taken as batches.

    It is work-conserving: a batch is taken as soon as the model is free (`wait_s` is 0), unless waiting saves more than
    it costs the items that wait, where `base` is the time that a step takes whatever its size. For the next arrival
    that is where the expected gap, four times the median of the latest, times the items that would wait, is less than
    half a base. For the clients of the latest batch it is where they should be back within half a base, and that time
    times the items that would wait is less than half a base for each of them. `max_wait_s` after the first item could
    have been computed the wait ends in any case, and it ends with as many items as waited, or were computed, when the
    latest batch ended: all its clients are back.

    An item leaves once: by `take_batch`, `cancel`, `take_overdue` or `close`. Items of one priority leave in the order
    of their arrival; where batches are padded, those of similar length leave together, and the oldest is always among
    them, so an item waits for no more batches than there were items before it. Background items leave without others,
    so that these wait for no more of them than a running batch. All times are of one clock.
    """

    def __init__(self, costs: CostModel, settings: BatchingSettings, clock: Callable[[], float]) -> None:
        self.costs = costs
        self._settings = settings
        self._clock = clock
        self._queue: PriorityQueue[_Waiting[T]] = PriorityQueue(settings.ageing_s)
        self._entries: dict[str, QueueEntry[_Waiting[T]]] = {}
        self._deadlines: dict[str, float] = {}  # of those that have one
        self._costs_by_priority: dict[int, int] = {}
        self._arrivals = ArrivalStatistics()
        self._free_since = clock()
        self._num_computed = 0  # items of the latest batch
        self._num_expected = math.inf  # items that waited when it ended, and its own, whose clients may come back
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    @property
    def waiting_cost(self) -> int:
        """Cost of all items that wait."""
        return sum(self._costs_by_priority.values())

    def has_room_for(self, cost: int) -> bool:
        """Whether items of this cost in all would be accepted now; items of any cost may wait alone."""
        bound = self._settings.max_waiting_cost
        return not bound or not self._entries or self.waiting_cost + cost <= bound

    def add(self, name: str, item: T, *, cost: int, priority: int = 0, deadline: float | None = None) -> None:
        """Queue an item; raises QueueFull, EngineDead after `close`, and InvalidParameter for a name in use."""
        cost = max(1, cost)
        if self._is_closed:
            raise EngineDead("the predictor is shut down")
        if name in self._entries:
            raise InvalidParameter(f"request_id {name!r} is in use", "request_id")
        if not self.has_room_for(cost):
            raise QueueFull(f"items of {self.waiting_cost:,} tokens wait already, and this one has {cost:,}")
        now = self._clock()
        self._arrivals.record_arrival(now)
        waiting = _Waiting(name, item, cost, math.inf if deadline is None else deadline)
        self._entries[name] = self._queue.push(waiting, priority=priority, arrival=now, deadline=deadline)
        self._costs_by_priority[priority] = self._costs_by_priority.get(priority, 0) + cost
        if deadline is not None:
            self._deadlines[name] = deadline

    def is_too_late(self, cost: int, priority: int, deadline: float) -> bool:
        """Whether an item that came now would probably not be computed by its deadline, by the fitted times."""
        ahead = sum(waiting for level, waiting in self._costs_by_priority.items() if level <= priority)
        return self._clock() + self.costs.seconds(ahead + cost) > deadline

    def cancel(self, name: str) -> T | None:
        """Remove an item that waits; None where it does not."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        return self._forget(entry)

    def take_overdue(self) -> list[T]:
        """Remove the items whose deadline has passed."""
        now = self._clock()
        names = [name for name, deadline in self._deadlines.items() if deadline <= now]
        return [item for name in names if (item := self.cancel(name)) is not None]

    def wait_s(self) -> float | None:
        """Return how long to wait for further arrivals before the next batch: 0 for now, None where nothing waits.

        To be called while no batch is computed.
        """
        if not self._entries:
            return None
        if self._is_full() or len(self._entries) >= self._num_expected:
            return 0.0
        first_arrival = next(iter(self._entries.values())).start
        until = self._worth_waiting_until()
        latest = max(self._free_since, first_arrival) + self._settings.max_wait_s
        urgent = min(self._deadlines.values(), default=math.inf) - 2 * self.costs.seconds(self.waiting_cost)
        return max(0.0, min(until, latest, urgent) - self._clock())

    def take_batch(self) -> list[T]:
        """Remove the next batch: at least one item where any waits, and as many more as the budget has room for."""
        if not self._entries:
            return []
        chosen = self._take_similar() if self._settings.is_padded else self._take_in_order()
        self._num_computed = len(chosen)
        return [self._forget(entry) for entry in chosen]

    def record_batch(self, cost: int, seconds: float) -> None:
        """Record the time of a computed batch."""
        self.costs.record(cost, seconds)

    def record_free(self) -> None:
        """Record that the batch that was taken is done, whatever came of it."""
        self._free_since = self._clock()
        self._num_expected = self._num_computed + len(self._entries)
        self._arrivals.record_batch_end(self._free_since, self._num_computed)

    def close(self) -> list[T]:
        """Remove all items and accept no more."""
        self._is_closed = True
        return [self._forget(entry) for entry in list(self._entries.values())]

    def _worth_waiting_until(self) -> float:
        """Return until when waiting saves more than it costs, in time of all items; minus infinity for not at all."""
        arrivals, num_items, saved_s = self._arrivals, len(self._entries), self.costs.base_s / 2
        until = -math.inf
        if arrivals.gap_s * num_items < saved_s:
            until = max(self._free_since, arrivals.last_arrival) + arrivals.gap_s
        if arrivals.return_s * num_items < saved_s * self._num_computed and arrivals.return_s < saved_s:
            until = max(until, self._free_since + arrivals.return_s)
        return until

    def _is_full(self) -> bool:
        """Whether a further item like those that wait would not fit into their batch."""
        num_items = len(self._entries)
        bound = self._settings.max_items
        return (bound and num_items >= bound) or self.waiting_cost * (num_items + 1) > self.costs.budget * num_items

    def _take_in_order(self) -> list[QueueEntry[_Waiting[T]]]:
        """Pop items in order until the next one does not fit."""
        chosen: list[QueueEntry[_Waiting[T]]] = []
        budget, cost = self.costs.budget, 0
        while (entry := self._queue.peek()) is not None:
            cost += entry.item.cost
            if chosen and (cost > budget or len(chosen) == self._settings.max_items):
                break
            if chosen and is_background(entry.priority) != is_background(chosen[0].priority):
                break
            self._queue.serve(entry)
            chosen.append(entry)
        return chosen

    def _take_similar(self) -> list[QueueEntry[_Waiting[T]]]:
        """Pop the oldest item, and of the next ones of its priority those of the nearest cost, as many as fit."""
        window = self._pop_window()
        oldest, others = window[0], window[1:]
        others.sort(key=lambda entry: (abs(entry.item.cost - oldest.item.cost), entry.order))
        chosen, longest = [oldest], oldest.item.cost
        for entry in others:
            longest = max(longest, entry.item.cost)
            if longest * (len(chosen) + 1) > self.costs.budget or len(chosen) == self._settings.max_items:
                break
            chosen.append(entry)
        taken = {entry.order for entry in chosen}
        for entry in window:
            if entry.order not in taken:
                self._queue.push_back(entry)
        return sorted(chosen, key=lambda entry: entry.sort_key)

    def _pop_window(self) -> list[QueueEntry[_Waiting[T]]]:
        window: list[QueueEntry[_Waiting[T]]] = []
        cost = 0
        while (entry := self._queue.peek()) is not None and len(window) < WINDOW_ITEMS:
            if window and (entry.priority != window[0].priority or cost >= WINDOW_BUDGETS * self.costs.budget):
                break
            cost += entry.item.cost
            self._queue.serve(entry)
            window.append(entry)
        return window

    def _forget(self, entry: QueueEntry[_Waiting[T]]) -> T:
        """Drop all that is known of an item that has left the order."""
        self._queue.remove(entry)
        waiting = self._entries.pop(entry.item.name).item
        self._deadlines.pop(waiting.name, None)
        self._costs_by_priority[entry.priority] -= waiting.cost
        if not self._costs_by_priority[entry.priority]:
            del self._costs_by_priority[entry.priority]
        return waiting.item
