"""Events of one request, collected from the router and its engines."""

import time
from collections.abc import Iterable

from rayinfer.outputs import FinishReason, TraceEvent, TraceEventName

MAX_EVENTS = 4096  # of one request: bounds the memory of many prompts or choices


class RequestTrace:
    """Merged events of a request's prompts and choices; `details` name the prompt and choice of each event.

    The engine reports a choice that ended at a stop string as aborted: so "finished" is recorded here, once for each
    choice, and engine events of that name are dropped.
    """

    def __init__(self) -> None:
        self._events: list[TraceEvent] = []
        self.num_dropped = 0  # events beyond the bound

    def __len__(self) -> int:
        return len(self._events)

    def record(self, name: TraceEventName, *, time_s: float | None = None, **details: int | float | str) -> None:
        """Record an event that happened now, or at `time_s`."""
        self._add(TraceEvent(name, time.time() if time_s is None else time_s, details))

    def record_end(self, reason: FinishReason, *, output_tokens: int, **labels: int) -> None:
        """Record the end of a choice."""
        self.record("finished", **labels, reason=reason, output_tokens=output_tokens)

    def add_engine_events(self, events: Iterable[TraceEvent], **labels: int) -> None:
        """Add an engine's events of one choice."""
        for event in events:
            if event.name != "finished":
                self._add(event._replace(details={**labels, **event.details}))

    def in_order(self) -> list[TraceEvent]:
        """Return the events in the order of their times."""
        return sorted(self._events, key=lambda event: event.time_s)

    def _add(self, event: TraceEvent) -> None:
        if len(self._events) < MAX_EVENTS:
            self._events.append(event)
        else:
            self.num_dropped += 1
