"""Which requests have run out of time."""

import heapq


class Deadlines:
    """A heap of dates; requests that ended in time are passed over when theirs comes up."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []

    def add(self, request_id: str, deadline: float) -> None:
        """Watch a request; `deadline` is in seconds of the caller's clock."""
        heapq.heappush(self._heap, (deadline, request_id))

    def take_overdue(self, now: float) -> list[str]:
        """Return, once, every request whose date has passed."""
        overdue = []
        while self._heap and self._heap[0][0] <= now:
            overdue.append(heapq.heappop(self._heap)[1])
        return overdue
