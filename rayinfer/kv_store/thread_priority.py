"""Priority of threads that work beside an engine's steps."""

import contextlib
import os
import threading

_NICENESS = 10


def lower_priority() -> None:
    """Let the calling thread get what other threads leave, where the system has priorities of threads."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
