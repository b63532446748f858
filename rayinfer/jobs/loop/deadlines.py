"""Timeouts of a job: of its setup, and of steps in which nothing advances."""

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from rayinfer.jobs.interfaces import JobError

Result = TypeVar("Result")


class SetupTimeout(JobError):
    """A model that is not loaded in time."""


class StepTimeout(JobError):
    """Workers with rows that have not advanced for too long."""


def run_within(seconds: float, name: str, function: Callable[[], Result]) -> Result:
    """Run a function in a thread of its own; raises SetupTimeout where it takes longer, and leaves it behind."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if thread.is_alive():
        raise SetupTimeout(f"{name} took longer than timeouts.setup_s ({seconds:g} s)")
    return results[0]


class StepDeadline:
    """Time since a task has last advanced; `work_done` shows that it has."""

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._latest: Any = None
        self._since = clock()

    def check(self, work_done: Any, num_rows: int) -> None:
        """Raise StepTimeout if the number is what it was a whole timeout ago, though there are rows."""
        if work_done != self._latest or not num_rows:
            self._latest, self._since = work_done, self._clock()
        elif self._clock() - self._since > self._timeout_s:
            raise StepTimeout(
                f"nothing has advanced for timeouts.step_s ({self._timeout_s:g} s), with {num_rows} rows in the task"
            )
