"""What happens to one request inside the engine, with the time it happened."""

import time
from collections.abc import Callable

from rayinfer.outputs import TraceEvent, TraceEventName


class RequestTrace:
    """The events of a request that asked for them; others have no trace, so it costs them nothing."""

    __slots__ = ("_clock", "_has_first_token", "events")

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._has_first_token = False
        self.events: list[TraceEvent] = []

    def note(self, name: TraceEventName, **details: int | float | str) -> None:
        """Add an event that happens now."""
        self.events.append(TraceEvent(name, self._clock(), details))

    def note_first_token(self) -> None:
        """Add that the first token is there, unless it has been there before."""
        if not self._has_first_token:
            self._has_first_token = True
            self.note("first_token")
