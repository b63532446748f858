"""Typed events of a job; an error of a handler ends the job, and says whose it was."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rayinfer.jobs.interfaces import Counts, JobError, Progress

Context = TypeVar("Context")


@dataclass(frozen=True, slots=True)
class Event(Generic[Context]):
    """Event by its name; handlers get its context."""

    name: str


@dataclass(frozen=True, slots=True)
class StepContext:
    """One step of the loop: some rows have ended."""

    step: int
    rows: int  # that ended in this step; before it 0
    counts: Counts


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """Forward pass of a batch."""

    rows: int


@dataclass(frozen=True, slots=True)
class Failure:
    """End of a job that did not reach its last row."""

    error: BaseException


CONFIGURATION_STARTED: Event[None] = Event("configuration.started")
DATA_OPENED: Event[None] = Event("configuration.data_opened")
MODEL_LOADED: Event[None] = Event("configuration.model_loaded")
RESUMED: Event[Progress | None] = Event("resumed")  # None: from the first row
READY: Event[None] = Event("ready")
STEP_STARTED: Event[StepContext] = Event("step.started")
STEP_FINISHED: Event[StepContext] = Event("step.finished")
FORWARD_STARTED: Event[ForwardContext] = Event("forward.started")
FORWARD_FINISHED: Event[ForwardContext] = Event("forward.finished")
CHECKPOINTED: Event[Progress] = Event("checkpointed")
FINALIZED: Event[None] = Event("finalized")  # task and sink; the commit record follows
FINISHED: Event[None] = Event("finished")
FAILED: Event[Failure] = Event("failed")


class HandlerFailed(JobError):
    """A handler of an event raised; the message names both."""


class EventBus:
    """Handlers by event, called in the order in which they were subscribed."""

    def __init__(self) -> None:
        self._handlers: dict[Event[Any], list[Callable[[Any], None]]] = defaultdict(list)

    def subscribe(self, event: Event[Context], handler: Callable[[Context], None]) -> Callable[[], None]:
        """Call a handler at each event; returns what ends that."""
        self._handlers[event].append(handler)
        return lambda: self._handlers[event].remove(handler)

    def trigger(self, event: Event[Context], context: Context) -> None:
        """Call the event's handlers; raises HandlerFailed for the first that raises, from its error."""
        for handler in tuple(self._handlers[event]):
            try:
                handler(context)
            except Exception as error:
                name = getattr(handler, "__qualname__", type(handler).__qualname__)
                module = getattr(handler, "__module__", "")
                reason = " ".join(str(error).split()) or "no message"
                raise HandlerFailed(
                    f"handler {module}.{name} of event {event.name!r}: {type(error).__name__}: {reason}"
                ) from error
