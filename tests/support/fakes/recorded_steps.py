"""The steps of an engine's start that a test's own calls report."""

import contextlib
import logging
from collections.abc import Iterator

from rayinfer.startup_steps import LOGGER, StartupStep


class _Recorder(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.steps: list[StartupStep] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.steps.extend(record.args)


@contextlib.contextmanager
def recorded_steps() -> Iterator[list[StartupStep]]:
    recorder = _Recorder()
    LOGGER.addHandler(recorder)
    LOGGER.setLevel(logging.INFO)
    try:
        yield recorder.steps
    finally:
        LOGGER.setLevel(logging.NOTSET)
        LOGGER.removeHandler(recorder)


def ended(steps: list[StartupStep]) -> list[str]:
    """Names of the steps that are over, in the order of their ends."""
    return [step.name for step in steps if step.seconds is not None]
