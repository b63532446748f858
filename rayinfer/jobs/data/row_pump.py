"""Thread between an engine's task and many callers: rows of all batches share one continuous batch."""

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from rayinfer.errors import EngineDead
from rayinfer.jobs.providers import FinalizeContext, InferenceTask, RowOutput, SeededRow

_COLLECT_S = 0.02  # how long rows of a new batch may wait while others run


class RowPump:
    """Owner of a task: rows come in from any thread, and each is answered by its future."""

    def __init__(self, task: InferenceTask) -> None:
        self._task = task
        self._incoming: queue.SimpleQueue[list[tuple[SeededRow, Future[RowOutput]]] | None] = queue.SimpleQueue()
        self._waiting: dict[int, Future[RowOutput]] = {}  # by the rows' indices, which differ
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="row-pump", daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        """Rows that are in the engine."""
        return len(self._waiting)

    def submit(self, rows: Sequence[SeededRow]) -> list[Future[RowOutput]]:
        """Queue rows, and return the futures of their outputs."""
        if self._failure is not None:
            raise EngineDead(f"the engine ended: {self._failure}")
        futures: list[Future[RowOutput]] = [Future() for _ in rows]
        self._incoming.put(list(zip(rows, futures, strict=True)))
        return futures

    def close(self) -> None:
        """End the thread and free the engine; rows that are still there fail."""
        self._incoming.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._take_incoming():
                for output in self._task.collect(_COLLECT_S):
                    self._waiting.pop(output.index).set_result(output)
        except BaseException as error:
            self._failure = error
        failure = self._failure or EngineDead("the engine was closed")
        for future in self._waiting.values():
            future.set_exception(failure)
        self._waiting.clear()
        self._task.finalize(FinalizeContext(self._failure))
        self._task.close()

    def _take_incoming(self) -> bool:
        """Pass new rows to the task; wait for them while it has none. Returns False at the end."""
        try:
            while (batch := self._incoming.get(block=not self._waiting)) is not None:
                self._waiting.update((row.row.index, future) for row, future in batch)
                self._task.submit([row for row, _ in batch])
        except queue.Empty:
            return True
        return False
