"""Progress of long tasks, on standard error: bars, and a line for a terminal alone."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn


def progress_bar(*columns: ProgressColumn, shown: bool) -> Progress:
    """Make a bar with the task's description and these columns beside it; nothing is printed unless `shown`."""
    described = (TextColumn("{task.description}"), BarColumn())
    return Progress(*described, *columns, console=Console(stderr=True), disable=not shown)


@contextmanager
def progress_line(name: str, total: int) -> Iterator[Callable[[], None]]:
    """Yield what is to be called for each of `total` that is done; without a terminal nothing is shown."""
    stream, started, num_done = sys.stderr, time.monotonic(), 0
    is_shown = stream.isatty()

    def advance() -> None:
        nonlocal num_done
        num_done += 1
        if is_shown:
            stream.write(f"\r{name}: {num_done} of {total}, {time.monotonic() - started:.0f} s")
            stream.flush()

    try:
        yield advance
    finally:
        if is_shown and num_done:
            stream.write("\n")
