"""One future for several."""

import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from typing import Any


def joined(started: Sequence[Future[Any] | None]) -> Future[list[Any]] | None:
    """Return a future of all results, in order; once all are done it has them, or the first one's error that failed.

    None stands for what needs no time, also where there is nothing else.
    Cancelled, the future cancels those that have not begun.
    """
    futures = [each for each in started if each is not None]
    if not futures:
        return None
    if len(futures) == 1:
        return futures[0]
    whole: Future[list[Any]] = Future()
    num_left, lock = len(futures), threading.Lock()

    def count(_: Future[Any]) -> None:
        nonlocal num_left
        with lock:
            num_left -= 1
            if num_left:
                return
        if not whole.set_running_or_notify_cancel():
            return
        errors = (CancelledError() if each.cancelled() else each.exception() for each in futures)
        error = next((each for each in errors if each is not None), None)
        if error is None:
            whole.set_result([each.result() for each in futures])
        else:
            whole.set_exception(error)

    def cancel(_: Future[Any]) -> None:
        if whole.cancelled():
            for each in futures:
                each.cancel()

    whole.add_done_callback(cancel)
    for each in futures:
        each.add_done_callback(count)
    return whole
