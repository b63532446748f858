"""Bound on connections to an engine whose other end has not shown the key yet."""

import asyncio


class UnauthenticatedConnections:
    """At most so many connections: a new one beyond that ends the oldest.

    A router shows its key within milliseconds, so the peer that has waited longest is the least likely to be one.
    """

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections
        self._tasks: dict[asyncio.Task[None], None] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, task: asyncio.Task[None]) -> None:
        """Count the task that serves a connection until it is removed or ends."""
        if len(self._tasks) >= self._max_connections:
            oldest = next(iter(self._tasks))
            self.remove(oldest)
            oldest.cancel()
        self._tasks[task] = None
        task.add_done_callback(self.remove)

    def remove(self, task: asyncio.Task[None]) -> None:
        """Stop counting a connection: its other end has shown the key, or it has ended."""
        self._tasks.pop(task, None)
