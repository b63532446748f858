"""Events of one request, collected from the router and its engines."""

import time
from collections.abc import Iterable, Mapping
from itertools import chain
from operator import itemgetter
from typing import Any

from rayinfer.outputs import FinishReason, TraceEvent, TraceEventName

MAX_EVENTS = 4096  # of one request: bounds the memory of many prompts or choices

# Name, time and the details' names and values in turn. A plain tuple of numbers and texts is no work for the garbage
# collector, which else walks all stored traces at every full collection, while streams wait.
_PackedEvent = tuple[Any, ...]


class RequestTrace:
    """Merged events of a request's prompts and choices; `details` name the prompt and choice of each event.

    The engine reports a choice that ended at a stop string as aborted: so "finished" is recorded here, once for each
    choice, and engine events of that name are dropped.
    """

    def __init__(self) -> None:
        self._events: list[_PackedEvent] = []
        self.num_dropped = 0  # events beyond the bound

    def __len__(self) -> int:
        return len(self._events)

    def record(self, name: TraceEventName, *, time_s: float | None = None, **details: int | float | str) -> None:
        """Record an event that happened now, or at `time_s`."""
        self._add(name, time.time() if time_s is None else time_s, details)

    def record_end(self, reason: FinishReason, *, output_tokens: int, **labels: int) -> None:
        """Record the end of a choice."""
        self.record("finished", **labels, reason=reason, output_tokens=output_tokens)

    def add_engine_events(self, events: Iterable[TraceEvent], **labels: int) -> None:
        """Add an engine's events of one choice."""
        for event in events:
            if event.name != "finished":
                self._add(event.name, event.time_s, {**labels, **event.details})

    def in_order(self) -> list[TraceEvent]:
        """Return the events in the order of their times."""
        return [_unpack(event) for event in sorted(self._events, key=itemgetter(1))]

    def _add(self, name: TraceEventName, time_s: float, details: Mapping[str, int | float | str]) -> None:
        if len(self._events) < MAX_EVENTS:
            self._events.append((name, time_s, *chain.from_iterable(details.items())))
        else:
            self.num_dropped += 1


def _unpack(event: _PackedEvent) -> TraceEvent:
    name, time_s, *details = event
    return TraceEvent(name, time_s, dict(zip(details[::2], details[1::2], strict=True)))
