"""Progress of a job on standard error: a live line on a terminal, else one line a minute."""

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rayinfer.jobs.interfaces import Counts

LIVE_PERIOD_S = 0.25
LINE_PERIOD_S = 60.0


class ProgressDisplay(Protocol):
    """Display of a running job; a block around its steps."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""

    def begin(self, num_rows: int | None, rows_finished: int) -> None:
        """Receive the number of rows, if it is known, and those that an earlier run has finished."""

    def show(self, rows_finished: int, counts: Counts, rows_by_worker: Mapping[str, int]) -> None:
        """Show how far the job is; called often."""


class NoDisplay:
    """Display that shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def begin(self, num_rows: int | None, rows_finished: int) -> None:
        """Do nothing."""

    def show(self, rows_finished: int, counts: Counts, rows_by_worker: Mapping[str, int]) -> None:
        """Do nothing."""


class ConsoleDisplay:
    """Rows, tokens per second, remaining time and errors; on a terminal also the rows of each worker."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._period_s = LIVE_PERIOD_S if console.is_terminal else LINE_PERIOD_S
        self._live: Progress | None = None
        self._num_rows: int | None = None
        self._at_start = 0
        self._start_s = self._latest_s = clock()
        self._start_tokens: int | None = None
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._live = Progress(*columns, TextColumn("{task.fields[details]}"), console=console)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def begin(self, num_rows: int | None, rows_finished: int) -> None:
        """Receive the number of rows, if it is known, and those that an earlier run has finished."""
        self._num_rows, self._at_start = num_rows, rows_finished
        self._start_s = self._latest_s = self._clock()
        if rows_finished:
            self._console.print(f"resuming after {rows_finished:,} rows", highlight=False)
        if self._live is not None:
            self._live.add_task("rows", total=num_rows, completed=rows_finished, details="")

    def show(self, rows_finished: int, counts: Counts, rows_by_worker: Mapping[str, int]) -> None:
        """Show how far the job is, if the last time was a period ago."""
        now = self._clock()
        tokens = counts.prompt_tokens + counts.output_tokens
        if self._start_tokens is None:
            self._start_tokens = tokens
        if now - self._latest_s < self._period_s and rows_finished != self._num_rows:
            return
        self._latest_s = now
        seconds = max(now - self._start_s, 1e-9)
        details = self._details(rows_finished, counts, (tokens - self._start_tokens) / seconds, seconds)
        if self._live is not None:
            by_worker = " ".join(f"{name}:{rows}" for name, rows in rows_by_worker.items())
            self._live.update(self._live.task_ids[0], completed=rows_finished, details=f"{details} {by_worker}".strip())
        else:
            total = "" if self._num_rows is None else f" of {self._num_rows:,}"
            self._console.print(f"{rows_finished:,}{total} rows, {details}", highlight=False, soft_wrap=True)

    def _details(self, rows_finished: int, counts: Counts, tokens_per_s: float, seconds: float) -> str:
        parts = [f"{tokens_per_s:,.0f} tokens/s"]
        rate = (rows_finished - self._at_start) / seconds
        if self._num_rows is not None and rate > 0:
            parts.append(f"ETA {duration((self._num_rows - rows_finished) / rate)}")
        if counts.errors:
            parts.append(f"{counts.errors:,} errors")
        return ", ".join(parts)


def duration(seconds: float) -> str:
    """Write seconds as hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
