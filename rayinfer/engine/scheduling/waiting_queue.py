"""Waiting requests in one order, searchable by size, so that small ones can overtake large ones."""

import itertools

from rayinfer.engine.scheduling.request import Request
from rayinfer.priority_queue import PriorityQueue


class WaitingQueue:
    """One PriorityQueue for each size class: requests that need up to 1, 2, 4, 8, ... blocks for the tokens they have.

    A search for a request that fits looks at the head of each class; classes are few, however many wait.
    """

    def __init__(self, *, ageing_s: float, block_size: int) -> None:
        self._ageing_s = ageing_s
        self._block_size = block_size
        self._orders = itertools.count()
        self._classes: dict[int, PriorityQueue[Request]] = {}
        self.num_changes = 0  # grows whenever a request is added or removed

    def add(self, request: Request) -> None:
        """Queue a request for the first time, which fixes its position in the order."""
        self.num_changes += 1
        request.queue_entry = self._class_of(request).push(
            request, priority=request.priority, arrival=request.arrival, deadline=request.deadline
        )

    def put_back(self, request: Request) -> None:
        """Return a request to its position in the order."""
        assert request.queue_entry is not None
        self.num_changes += 1
        self._class_of(request).push_back(request.queue_entry)

    def remove(self, request: Request) -> None:
        """Remove a request."""
        assert request.queue_entry is not None
        self.num_changes += 1
        self._class_of(request).remove(request.queue_entry)

    def heads(self) -> list[Request]:
        """Return the first request of every class, in their order."""
        entries = [entry for queue in self._classes.values() if (entry := queue.peek()) is not None]
        if len(entries) > 1:
            entries.sort(key=lambda entry: entry.sort_key)
        return [entry.item for entry in entries]

    def _class_of(self, request: Request) -> PriorityQueue[Request]:
        # A request has the same tokens, and so the same class, for as long as it waits.
        size_class = (request.num_blocks_needed(self._block_size) - 1).bit_length()
        queue = self._classes.get(size_class)
        if queue is None:
            queue = self._classes[size_class] = PriorityQueue(ageing_s=self._ageing_s, orders=self._orders)
        return queue
