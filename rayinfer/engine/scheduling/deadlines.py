"""Deadlines of requests, ordered by time."""

import heapq
from collections.abc import Mapping

from rayinfer.engine.scheduling.request import Request

_FEWEST_TO_PRUNE = 1024


class Deadlines:
    """A heap of deadlines; those of finished requests are dropped each time the heap has doubled."""

    def __init__(self, unfinished: Mapping[str, Request]) -> None:
        self._unfinished = unfinished
        self._heap: list[tuple[float, str]] = []
        self._prune_above = _FEWEST_TO_PRUNE

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: Request) -> None:
        """Add a request's deadline, if it has one."""
        if request.deadline is None:
            return
        heapq.heappush(self._heap, (request.deadline, request.request_id))
        if len(self._heap) > self._prune_above:
            self._heap = [entry for entry in self._heap if self._is_current(*entry)]
            heapq.heapify(self._heap)
            self._prune_above = max(_FEWEST_TO_PRUNE, 2 * len(self._heap))

    def take_overdue(self, now: float) -> list[str]:
        """Return, once, every unfinished request whose deadline has passed; `now` is of the deadlines' clock."""
        overdue = []
        while self._heap and self._heap[0][0] <= now:
            deadline, request_id = heapq.heappop(self._heap)
            if self._is_current(deadline, request_id):
                overdue.append(request_id)
        return overdue

    def _is_current(self, deadline: float, request_id: str) -> bool:
        # The deadline may be that of an earlier request with this id.
        request = self._unfinished.get(request_id)
        return request is not None and request.deadline == deadline
