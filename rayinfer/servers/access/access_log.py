"""Access log: a line of JSON for each request, written by a thread."""

import contextlib
import json
import logging
import os
import queue
import threading
import time
from pathlib import Path
from typing import Any

from rayinfer.errors import ConfigError

MAX_WAITING = 10_000  # lines; more are dropped, and counted in the next one
MAX_BATCH = 1_000
REOPEN_S = 1.0

logger = logging.getLogger(__name__)


class AccessLog:
    """File of lines that several routers append to; it may be moved away while it is written."""

    def __init__(self, path: Path, *, check_s: float = REOPEN_S) -> None:
        """Open the file; raises ConfigError if that fails."""
        self._path = path
        self._check_s = check_s  # how often it is looked whether the file is still there
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._num_dropped = 0
        try:
            self._descriptor = self._open()
        except OSError as error:
            raise ConfigError(f"cannot write the access log {path}: {error.strerror}") from None
        self._checked_s = time.monotonic()
        self._thread = threading.Thread(target=self._write_all, name="access-log", daemon=True)
        self._thread.start()

    def write(self, fields: dict[str, Any]) -> None:
        """Have a line written; never waits."""
        if self._lines.qsize() >= MAX_WAITING:
            self._num_dropped += 1
            return
        if self._num_dropped:
            fields["num_dropped"], self._num_dropped = self._num_dropped, 0
        self._lines.put(fields)

    def close(self) -> None:
        """Write what waits, and close the file."""
        self._lines.put(None)
        self._thread.join()
        os.close(self._descriptor)

    def _write_all(self) -> None:
        while True:
            batch = [self._lines.get()]
            with contextlib.suppress(queue.Empty):
                while len(batch) < MAX_BATCH:
                    batch.append(self._lines.get_nowait())
            text = "".join(json.dumps(fields) + "\n" for fields in batch if fields is not None)
            try:
                self._reopen_if_moved()
                os.write(self._descriptor, text.encode())  # one call, so that lines of routers do not mix
            except OSError as error:
                logger.error("cannot write the access log %s: %s", self._path, error)
            if None in batch:
                return

    def _open(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def _reopen_if_moved(self) -> None:
        if time.monotonic() - self._checked_s < self._check_s:
            return
        self._checked_s = time.monotonic()
        try:
            is_same = os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            is_same = False
        if not is_same:
            moved, self._descriptor = self._descriptor, self._open()
            os.close(moved)
