"""The events of one request, gathered from router and engines."""

import time
from collections.abc import Iterable

from rayinfer.outputs import FinishReason, TraceEvent, TraceEventName

MAX_EVENTS = 4096  # of one request: one with many prompts or choices must not fill the memory


class RequestTrace:
    """The merged events of a request's prompts and choices; `details` name those that each belongs to.

    Only the owner of the text knows how a choice ended, for the engine sees a stop string as an abort: so "finished"
    is recorded here, once for each choice, and not taken from the engine.
    """

    def __init__(self) -> None:
        self._events: list[TraceEvent] = []
        self.num_dropped = 0  # events beyond the bound

    def __len__(self) -> int:
        return len(self._events)

    def record(self, name: TraceEventName, *, time_s: float | None = None, **details: int | float | str) -> None:
        """Note what has just happened, or happened at `time_s`."""
        self._add(TraceEvent(name, time.time() if time_s is None else time_s, details))

    def record_end(self, reason: FinishReason, *, output_tokens: int, **place: int) -> None:
        """Note the end of a choice."""
        self.record("finished", **place, reason=reason, output_tokens=output_tokens)

    def take_over(self, events: Iterable[TraceEvent], **place: int) -> None:
        """Add an engine's events of one choice."""
        for event in events:
            if event.name != "finished":
                self._add(event._replace(details={**place, **event.details}))

    def in_order(self) -> list[TraceEvent]:
        """Return the events in the order of their times."""
        return sorted(self._events, key=lambda event: event.time_s)

    def _add(self, event: TraceEvent) -> None:
        if len(self._events) < MAX_EVENTS:
            self._events.append(event)
        else:
            self.num_dropped += 1
