"""Start steps of an engine, reported as log records: add a handler to show them."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

LOGGER = logging.getLogger(__name__)
LOGGER.propagate = False  # only for handlers added to this logger
LOGGER.addHandler(logging.NullHandler())


@dataclass(frozen=True, kw_only=True, slots=True)
class StartupStep:
    """Progress of a step."""

    name: str
    num_done: int | None = None  # parts of it, where they are counted
    num_parts: int | None = None
    seconds: float | None = None  # that it took; None while it lasts


@contextmanager
def startup_step(name: str) -> Iterator[None]:
    """Report the start of a step, and its end unless it fails."""
    started = time.monotonic()
    _report(StartupStep(name=name))
    yield
    _report(StartupStep(name=name, seconds=time.monotonic() - started))


class CountedStartupStep:
    """A step of several parts, called with the number done and that of all; not reported if it is never called."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._started: float | None = None

    def __call__(self, num_done: int, num_parts: int) -> None:
        """Report how many parts are done; the step is over with the last one."""
        now = time.monotonic()
        self._started = self._started or now
        seconds = now - self._started if num_done == num_parts else None
        _report(StartupStep(name=self._name, num_done=num_done, num_parts=num_parts, seconds=seconds))


def _report(step: StartupStep) -> None:
    LOGGER.info("%s", step)
