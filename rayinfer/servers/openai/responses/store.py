"""Responses that clients may come back to, in SQLite: by owner, for a limited time and up to a limited number."""

import json
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayinfer.errors import RayinferError, ResourceNotFound

MAX_AGE_S = 7 * 86400.0
MAX_PER_OWNER = 1000
DATABASE = "responses.sqlite"
BUSY_S = 10.0
LOST_AFTER_S = 30.0  # without a sign of the router that computes a background response
RUNNING = ("queued", "in_progress")
_TABLE = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created_s REAL NOT NULL, touched_s REAL NOT NULL, status TEXT NOT NULL,
    body TEXT NOT NULL, input TEXT NOT NULL, messages TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS responses_of_owner ON responses (owner, created_s);
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredResponse:
    """A response, the items of its input, and the conversation with its answer."""

    body: Mapping[str, Any]
    input: Sequence[Mapping[str, Any]]
    messages: Sequence[Mapping[str, Any]]  # without instructions


class ResponseStore:
    """A database that routers of a machine share; in memory without a folder. Safe for threads."""

    def __init__(
        self, folder: Path | None = None, *, max_age_s: float = MAX_AGE_S, max_per_owner: int = MAX_PER_OWNER
    ) -> None:
        """Open the database; raises RayinferError if that fails."""
        self._max_age_s = max_age_s
        self._max_per_owner = max_per_owner
        self._lock = threading.Lock()
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                (folder / DATABASE).touch(mode=0o600)
            path = ":memory:" if folder is None else str(folder / DATABASE)
            self._database = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.executescript(_TABLE)
        except (OSError, sqlite3.Error) as error:
            raise RayinferError(f"cannot open the responses in {folder}: {error}") from None

    def save(self, owner: str, response: StoredResponse) -> bool:
        """Add or replace a response, and delete those beyond the limits.

        A cancelled one stays as it is; returns whether it was saved.
        """
        body, now_s = response.body, time.time()
        row = (body["id"], owner, body["created_at"], now_s, body["status"], json.dumps(body))
        texts = (json.dumps(list(response.input)), json.dumps(list(response.messages)))
        with self._lock:
            saved = self._database.execute(
                "INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET touched_s ="
                " excluded.touched_s, status = excluded.status, body = excluded.body, messages = excluded.messages"
                " WHERE responses.status != 'cancelled' AND responses.owner = excluded.owner",
                (*row, *texts),
            )
            self._database.execute("DELETE FROM responses WHERE created_s < ?", (now_s - self._max_age_s,))
            self._database.execute(
                "DELETE FROM responses WHERE id IN (SELECT id FROM responses WHERE owner = ?"
                " ORDER BY created_s DESC, rowid DESC LIMIT -1 OFFSET ?)",
                (owner, self._max_per_owner),
            )
            return saved.rowcount > 0

    def find(self, owner: str, response_id: str) -> StoredResponse:
        """Return an owner's response; one that no router computes any more has failed. Raises ResourceNotFound."""
        found = self._read(
            "SELECT body, input, messages, status, touched_s FROM responses WHERE id = ? AND owner = ?"
            " AND created_s >= ?",
            (response_id, owner, time.time() - self._max_age_s),
        )
        if not found:
            raise ResourceNotFound(f"No response {response_id!r:.100} is stored.", "response_id")
        body, given, messages, status, touched_s = found[0]
        response = json.loads(body)
        if status in RUNNING and time.time() - touched_s > LOST_AFTER_S:
            error = {"code": "server_error", "message": "The service stopped before this response was complete."}
            response |= {"status": "failed", "error": error}
        return StoredResponse(body=response, input=json.loads(given), messages=json.loads(messages))

    def touch(self, response_id: str) -> bool:
        """Note that a response is computed; returns whether it is still wanted."""
        with self._lock:
            touched = self._database.execute(
                "UPDATE responses SET touched_s = ? WHERE id = ? AND status IN (?, ?)",
                (time.time(), response_id, *RUNNING),
            )
            return touched.rowcount > 0

    def cancel(self, owner: str, response_id: str) -> StoredResponse:
        """Mark a response as cancelled if it is not complete, and return it; raises ResourceNotFound."""
        response = self.find(owner, response_id)
        if response.body["status"] in RUNNING:
            body = json.dumps({**response.body, "status": "cancelled"})
            with self._lock:
                self._database.execute(
                    "UPDATE responses SET status = 'cancelled', body = ? WHERE id = ? AND owner = ?"
                    " AND status IN (?, ?)",
                    (body, response_id, owner, *RUNNING),
                )
        return self.find(owner, response_id)

    def delete(self, owner: str, response_id: str) -> None:
        """Delete a response; raises ResourceNotFound."""
        with self._lock:
            deleted = self._database.execute("DELETE FROM responses WHERE id = ? AND owner = ?", (response_id, owner))
        if not deleted.rowcount:
            raise ResourceNotFound(f"No response {response_id!r:.100} is stored.", "response_id")

    def _read(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._database.execute(query, values).fetchall()
