"""Failure of a command: one line on stderr for people, an exit code for scripts."""

import functools
import logging
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import typer

from rayinfer.errors import RayinferError

INTERRUPTED = 130  # what shells use for a command that Ctrl-C ended

logger = logging.getLogger(__name__)


def in_one_line(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command report our own errors, and Ctrl-C, in one line; `rayinfer --debug` shows tracebacks."""

    @functools.wraps(command)
    def reporting(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except KeyboardInterrupt:
            logger.debug("interrupted", exc_info=True)
            sys.stderr.write("interrupted\n")
            raise typer.Exit(INTERRUPTED) from None
        except (RayinferError, OSError) as error:
            logger.debug("failed", exc_info=True)
            sys.stderr.write(f"error: {one_line(error)}\n")
            raise typer.Exit(1) from None

    return reporting


def leave_at_once(command: Callable[..., None]) -> Callable[..., None]:
    """End the process with the command: threads that still sit in native code would hold it up, or abort."""

    @functools.wraps(command)
    def leaving(*arguments: Any, **options: Any) -> None:
        exit_code = 0
        try:
            command(*arguments, **options)
        except typer.Exit as leave:
            exit_code = leave.exit_code
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)

    return leaving


def interrupt_on_signals() -> None:
    """Make SIGTERM and a closed terminal end a command like Ctrl-C does, even where a shell has SIGINT ignored."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.alarm(0)  # set by Ray's handler, which runs before ours: it would abort the process after three seconds
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, interrupt)


def one_line(error: Exception) -> str:
    """Format an error and its notes without line breaks.

    Of a file, it is its name and the reason; without a message, the type's name.
    """
    if isinstance(error, OSError) and error.filename is not None:
        reason = f"{error.filename}: {error.strerror}"
    else:
        reason = " ".join(str(error).split()) or type(error).__name__
    return "; ".join([reason, *getattr(error, "__notes__", [])])
