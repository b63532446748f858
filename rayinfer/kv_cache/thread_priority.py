"""Priority of threads that work beside an engine's steps."""

import contextlib
import os
import threading


def lower_priority(niceness: int = 10) -> None:
    """Let the calling thread get what other threads leave, where the system has priorities of threads."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
