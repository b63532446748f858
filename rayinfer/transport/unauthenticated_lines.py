"""The connections to an engine whose other end has not shown the key yet: so many at most, the newest."""

import asyncio


class UnauthenticatedLines:
    """Bounds their number: where there is no room, the oldest is ended.

    A router shows its key within milliseconds, so the peer that has waited longest is the least likely to be one.
    """

    def __init__(self, max_lines: int) -> None:
        self._max_lines = max_lines
        self._lines: dict[asyncio.Task[None], None] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, line: asyncio.Task[None]) -> None:
        """Take a line in until it is removed or ends."""
        if len(self._lines) >= self._max_lines:
            oldest = next(iter(self._lines))
            self.remove(oldest)
            oldest.cancel()
        self._lines[line] = None
        line.add_done_callback(self.remove)

    def remove(self, line: asyncio.Task[None]) -> None:
        """Count a line no more, as its other end has shown the key or it has ended."""
        self._lines.pop(line, None)
