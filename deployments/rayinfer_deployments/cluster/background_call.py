"""A call in a thread of its own, so that the main thread can handle signals while the call runs native code."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

POLL_S = 0.1

Result = TypeVar("Result")


class BackgroundCall(Generic[Result]):
    """One function running in a daemon thread, which neither a waiter nor the end of the process has to join."""

    def __init__(self, function: Callable[[], Result]) -> None:
        self._function = function
        self._results: list[Result] = []
        self._error: BaseException | None = None
        self._is_done = threading.Event()
        self._may_end = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def is_done(self) -> bool:
        """Return whether the function has returned or raised."""
        return self._is_done.is_set()

    def result(self, check: Callable[[], None] = lambda: None) -> Result:
        """Return the function's result or raise its error; `check` is called meanwhile and may raise."""
        while not self._is_done.wait(POLL_S):
            check()
        return self._outcome()

    def raise_if_failed(self) -> None:
        """Raise the function's error; do nothing while it runs."""
        if self.is_done:
            self._outcome()

    def release(self) -> None:
        """Let the thread end; processes that the function started may be tied to its life."""
        self._may_end.set()

    def _outcome(self) -> Result:
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._function())
        except BaseException as error:  # raised in the waiting thread
            self._error = error
        self._is_done.set()
        self._may_end.wait()
