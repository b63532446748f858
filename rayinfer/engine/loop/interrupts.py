"""Ctrl-C while the engine changes its state: it is raised behind the change, which would be half made otherwise."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class _Deferral:
    """Python's handler of SIGINT, but for blocks that are not to be interrupted, at whose end it raises then."""

    def __init__(self) -> None:
        self.is_installed = False
        self._is_in_block = False
        self._was_interrupted = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        if not self._is_in_block:
            signal.default_int_handler(number, frame)
        self._was_interrupted = True

    def __enter__(self) -> None:
        self._is_in_block = True

    def __exit__(self, *exc_info: object) -> None:
        self._is_in_block = False
        if self._was_interrupted:
            self._was_interrupted = False
            raise KeyboardInterrupt


_deferral = _Deferral()


def interrupts_deferred() -> contextlib.AbstractContextManager[None]:
    """Raise KeyboardInterrupt at the block's end rather than within, where Python's own handler would raise it.

    In other threads than the main one, and beside a handler of the program's own, nothing is changed. Blocks are not
    nested.
    """
    if _deferral.is_installed and _is_main_thread():
        return _deferral
    return _interrupts_deferred_once()


@contextlib.contextmanager
def deferral_installed() -> Iterator[None]:
    """Install what `interrupts_deferred` needs, once for many blocks: it takes longer than most of them do."""
    if not _is_main_thread() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _deferral.handle)
    _deferral.is_installed = True
    try:
        yield
    finally:
        _deferral.is_installed = False
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def _interrupts_deferred_once() -> Iterator[None]:
    with deferral_installed():
        if not _deferral.is_installed or not _is_main_thread():
            yield
            return
        with _deferral:
            yield


def _is_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident
