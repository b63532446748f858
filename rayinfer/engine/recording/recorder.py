"""Recorder that writes an engine's schedule into a file."""

import logging
import os
import time
from pathlib import Path
from typing import BinaryIO

import msgspec

from rayinfer import __version__
from rayinfer.config import EngineConfig
from rayinfer.engine.plan.step_plan import SampledTokens, StepPlan
from rayinfer.engine.recording.events import (
    SUFFIX,
    VERSION,
    Aborted,
    Added,
    Controlled,
    Header,
    Planned,
    Sampled,
    Stepped,
    TimeRead,
)
from rayinfer.errors import ConfigError
from rayinfer.protocols import ControlAction, GenerationRequest, GetState, LoadAdapter, Sleep
from rayinfer.wire import encode

MAX_BYTES = 2**30  # then the recording ends, and the engine goes on

_logger = logging.getLogger(__name__)


class FileRecorder:
    """Writer of one engine's schedule; a file that cannot be written any more ends the recording only."""

    def __init__(self, folder: Path, config: EngineConfig, *, max_bytes: int = MAX_BYTES) -> None:
        """Open a file of its own in the folder; raises ConfigError."""
        self.path = folder / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}-{time.monotonic_ns()}{SUFFIX}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # prompts are private
        except OSError as error:
            raise ConfigError(f"cannot record the schedule in {folder}: {error.strerror}") from None
        self._file: BinaryIO | None = os.fdopen(descriptor, "wb")
        self._left = max_bytes
        settings = config.model_dump(mode="json", exclude={"record_schedule"})
        self._write(Header(version=VERSION, rayinfer=__version__, config=settings))

    def clock(self) -> float:
        """Read the clock, and record the reading."""
        now_s = time.monotonic()
        self._write(TimeRead(now_s))
        return now_s

    def added(self, request: GenerationRequest) -> None:
        """See ScheduleRecorder."""
        self._write(Added(request))

    def aborted(self, request_id: str) -> None:
        """See ScheduleRecorder."""
        self._write(Aborted(request_id))

    def controlled(self, action: ControlAction) -> None:
        """See ScheduleRecorder."""
        if not isinstance(action, GetState | LoadAdapter):  # engines with adapters are not recorded
            level = action.level if isinstance(action, Sleep) else 1
            self._write(Controlled(type(action).__name__.lower(), level))

    def stepped(self) -> None:
        """See ScheduleRecorder."""
        if self._file is not None:
            self._file.flush()  # what is there of an engine that ends is whole up to its last step
        self._write(Stepped())

    def planned(self, plan: StepPlan, request_ids: list[str]) -> None:
        """See ScheduleRecorder."""
        self._write(Planned.of(plan, request_ids))

    def sampled(self, plan: StepPlan, tokens: SampledTokens) -> None:
        """See ScheduleRecorder."""
        self._write(Sampled.of(plan, tokens))

    def close(self) -> None:
        """End the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _write(self, event: msgspec.Struct) -> None:
        if self._file is None:
            return
        try:
            frame = encode(event)
            self._left -= len(frame)
            if self._left < 0:
                raise OSError("it has reached its largest size")
            self._file.write(frame)
        except OSError as error:
            _logger.warning("the recording %s ends: %s", self.path, error)
            self.close()
