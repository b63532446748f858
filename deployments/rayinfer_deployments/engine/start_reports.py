"""Start-up progress of engines, written to a file that the waiting command reads.

The file lies beside the service's record, under the address of the Ray that both are part of. It is there only while
the command waits: an engine that finds none, on another machine or later, reports nothing.
"""

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rayinfer.startup_steps import LOGGER, StartupStep
from rayinfer_deployments.cluster.service_record import record_folder


@dataclass(frozen=True, kw_only=True, slots=True)
class StartReport:
    """Progress of one engine process in one start-up step."""

    process: str  # its name as an actor
    step: StartupStep


def reports_path(ray_address: str) -> Path:
    """Name the file for the service that starts on a Ray."""
    return record_folder() / f"start-{re.sub(r'[^A-Za-z0-9.-]', '-', ray_address)}.jsonl"


@contextlib.contextmanager
def written_steps(path: Path, process: str) -> Iterator[None]:
    """Write this process's steps to the file, if it is there; errors of the file are ignored."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
    except OSError:
        yield
        return
    writer = _Writer(file, process)
    LOGGER.addHandler(writer)
    LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOGGER.setLevel(logging.NOTSET)
        LOGGER.removeHandler(writer)
        os.close(file)


class StartReports:
    """The file of one start, for the command that waits; there from `with` to its end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._num_read = 0  # bytes

    def __enter__(self) -> "StartReports":
        with contextlib.suppress(OSError):  # then nothing is reported
            self._path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()

    def new(self) -> list[StartReport]:
        """Read what has been written since the last time, oldest first."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._num_read)
                whole = file.read().rpartition(b"\n")[0]
        except OSError:
            return []
        self._num_read += len(whole) + 1 if whole else 0
        return [report for line in whole.splitlines() if (report := _report_in(line)) is not None]


class _Writer(logging.Handler):
    def __init__(self, file: int, process: str) -> None:
        super().__init__()
        self._file = file
        self._process = process

    def emit(self, record: logging.LogRecord) -> None:
        (step,) = record.args or ()  # as startup_steps writes them
        line = json.dumps({"process": self._process, "step": asdict(step)}) + "\n"  # type: ignore[call-overload]
        with contextlib.suppress(OSError):  # a disk that is full
            os.write(self._file, line.encode())  # at once: several processes append


def _report_in(line: bytes) -> StartReport | None:
    try:
        fields = json.loads(line)
        return StartReport(process=fields["process"], step=StartupStep(**fields["step"]))
    except (ValueError, LookupError, TypeError):
        return None
