"""Progress of a long task, in one line on standard error, where that is a terminal; it needs no other package."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
