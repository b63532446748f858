"""The requests that wait, in one order, and yet such that a small one can be found behind a large one."""

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
        self.num_changes = 0  # grows whenever a request comes or goes

    def add(self, request: Request) -> None:
        """Queue a request for the first time, which fixes its place in the order."""
        self.num_changes += 1
        request.ticket = self._class_of(request).push(
            request, priority=request.priority, arrival=request.arrival, deadline=request.deadline
        )

    def put_back(self, request: Request) -> None:
        """Return a request to its place in the order."""
        assert request.ticket is not None
        self.num_changes += 1
        self._class_of(request).push_back(request.ticket)

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands."""
        assert request.ticket is not None
        self.num_changes += 1
        self._class_of(request).remove(request.ticket)

    def heads(self) -> list[Request]:
        """The first of every class, in their order."""
        tickets = [ticket for queue in self._classes.values() if (ticket := queue.peek()) is not None]
        if len(tickets) > 1:
            tickets.sort(key=lambda ticket: ticket.sort_key)
        return [ticket.item for ticket in tickets]

    def _class_of(self, request: Request) -> PriorityQueue[Request]:
        # A request has the same tokens, and so the same class, for as long as it waits.
        size_class = (request.num_blocks_needed(self._block_size) - 1).bit_length()
        queue = self._classes.get(size_class)
        if queue is None:
            queue = self._classes[size_class] = PriorityQueue(ageing_s=self._ageing_s, orders=self._orders)
        return queue
