"""Ctrl-C while the engine changes its state: it is raised behind the change, which would be half made otherwise."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Raise KeyboardInterrupt at the block's end rather than within, where Python's own handler would raise it.

    In other threads than the main one, and beside a handler of the program's own, nothing is changed.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    was_interrupted = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal was_interrupted
        was_interrupted = True

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if was_interrupted:
            raise KeyboardInterrupt
