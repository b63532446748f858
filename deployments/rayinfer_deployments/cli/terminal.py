"""Terminal output of a command: its progress is shown, while output of Ray and native code goes to a log file."""

import os
import sys
import time
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.status import Status
from rich.text import Text


class QuietTerminal:
    """Redirection of the process's output, C++ included, to a log file; the terminal is left to `console`."""

    def __init__(self, log_file: Path) -> None:
        self.log_file = log_file
        self._saved: dict[int, int] = {}

    def __enter__(self) -> Console:
        sys.stdout.flush()
        sys.stderr.flush()
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        self._saved = {number: os.dup(number) for number in (1, 2)}
        log = os.open(self.log_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        for number in self._saved:
            os.dup2(log, number)
        os.close(log)
        return Console(file=os.fdopen(os.dup(self._saved[1]), "w", buffering=1))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, saved in self._saved.items():
            os.dup2(saved, number)
            os.close(saved)


class Phases:
    """Phases of a start-up: the present one has a spinner, each finished one leaves a line with its seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        self._name = ""
        self._started = 0.0
        self.shown = ""  # what turns on a terminal

    def enter(self, name: str) -> None:
        """Begin a phase, ending the one before; the same name again changes nothing."""
        if name == self._name:
            return
        self.finish()
        self._name, self._started = name, time.monotonic()
        self._status = self._console.status("")
        self.explain("")
        self._status.start()

    def __enter__(self) -> "Phases":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def explain(self, detail: str) -> None:
        """Show beside the present phase what it waits for; the empty string clears it."""
        if self._status is not None:
            self.shown = f"{self._name} ({detail})" if detail else f"{self._name} ..."
            self._status.update(Text(self.shown))

    def detail(self, line: str) -> None:
        """Print a line for a finished part of the present phase."""
        self._console.print(f"    {line}", markup=False, highlight=False, soft_wrap=True)

    def note(self, line: str) -> None:
        """Print a line above the present phase."""
        self._console.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)

    def finish(self) -> None:
        """End the present phase and print its duration."""
        name, seconds = self._name, time.monotonic() - self._started
        self.stop()
        if name:
            self._console.print(f"  {name} ({seconds:.1f} s)", markup=False, highlight=False)

    def stop(self) -> None:
        """Remove the present phase from the screen without marking it finished."""
        if self._status is not None:
            self._status.stop()
        self._status, self._name = None, ""


class KeyFileReports:
    """Lines of the terminal about a key file that becomes damaged, and about its mending."""

    def __init__(self, path: Path, console: Console) -> None:
        from rayinfer.access.key_file import WatchedKeyFile

        self._file = WatchedKeyFile(path)
        self._console = console

    def check(self) -> None:
        """Look at the file, and print a line when its state has changed."""
        before = self._file.error
        self._file.read_changed()
        if self._file.error == before:
            return
        error = self._file.error
        line = (
            f"error: {error}; the last API keys apply until it is mended" if error else "the API keys are valid again"
        )
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
