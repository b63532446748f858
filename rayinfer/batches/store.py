"""Files and batches on disk: an SQLite database with a write-ahead log, and a folder of files' contents."""

import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rayinfer.batches.input_file import InputRow
from rayinfer.batches.output_files import RowOutcome
from rayinfer.batches.records import (
    OPEN_STATUSES,
    Batch,
    BatchStatus,
    NewBatch,
    RowKey,
    RowResult,
    RowUsage,
    StoredFile,
)
from rayinfer.errors import RayinferError

BUSY_S = 5.0
DATABASE = "batches.sqlite"

_TABLES = """
CREATE TABLE IF NOT EXISTS files (
    id TEXT PRIMARY KEY, owner TEXT, filename TEXT, purpose TEXT, num_bytes INTEGER, created_s REAL, expires_s REAL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS files_of_owner ON files (owner, created_s);
CREATE TABLE IF NOT EXISTS batches (
    id TEXT PRIMARY KEY, owner TEXT, key_id TEXT, tenant TEXT, status TEXT, endpoint TEXT, input_file TEXT,
    completion_window TEXT, expires_s REAL, output_expires_after_s REAL, metadata TEXT, times_s TEXT, errors TEXT,
    output_file TEXT, error_file TEXT, ending TEXT
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS batches_of_owner ON batches (owner);
CREATE INDEX IF NOT EXISTS batches_by_status ON batches (status);
CREATE TABLE IF NOT EXISTS rows (
    batch_id TEXT, line INTEGER, custom_id TEXT, offset INTEGER, num_bytes INTEGER, status INTEGER, request_id TEXT,
    body BLOB, model TEXT, prompt_tokens INTEGER, output_tokens INTEGER, cached_tokens INTEGER,
    reasoning_tokens INTEGER, UNIQUE (batch_id, line)
);
"""
_ADDED_COLUMNS = ("cached_tokens", "reasoning_tokens")  # that the rows of an older database lack
_FILE_COLUMNS = "id, filename, purpose, num_bytes, created_s, expires_s"
_COUNTS = """
SELECT count(*), coalesce(sum(status < 400), 0), coalesce(sum(status >= 400), 0), coalesce(sum(prompt_tokens), 0),
    coalesce(sum(output_tokens), 0), coalesce(sum(cached_tokens), 0), coalesce(sum(reasoning_tokens), 0),
    min(model), max(model) FROM rows WHERE batch_id = ?
"""
_RESULT = """
UPDATE rows SET status = ?, request_id = ?, body = ?, model = ?, prompt_tokens = ?, output_tokens = ?,
    cached_tokens = ?, reasoning_tokens = ?
WHERE batch_id = ? AND line = ? AND status IS NULL
"""


class OpenBatch(NamedTuple):
    """A batch that has not ended, as its owner needs it."""

    id: str
    owner: str
    key_id: str
    tenant: str
    status: BatchStatus
    endpoint: str
    input_file: str
    expires_s: float
    output_expires_after_s: float | None
    ending: BatchStatus  # what it becomes after its files are written


class BatchStore:
    """Database and files; safe for threads, and each change is durable when its method returns."""

    def __init__(self, folder: Path) -> None:
        self._files = folder / "files"
        self._files.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / DATABASE
        path.touch(mode=0o600)
        self._lock = threading.Lock()
        try:
            self._database = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.executescript(_TABLES)
            known = {row[1] for row in self._database.execute("PRAGMA table_info(rows)")}
            for column in (name for name in _ADDED_COLUMNS if name not in known):
                self._database.execute(f"ALTER TABLE rows ADD COLUMN {column} INTEGER")
        except sqlite3.Error as error:
            raise RayinferError(f"cannot open the batches in {path}: {error}") from None

    def path_of(self, file_id: str) -> Path:
        """Return where a file's content is."""
        return self._files / file_id

    def add_file(self, owner: str, file: StoredFile) -> None:
        """Make a file visible whose content is there."""
        row = (file.id, owner, file.filename, file.purpose, file.num_bytes, file.created_s, file.expires_s)
        with self._change() as database:
            database.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def file(self, owner: str, file_id: str) -> StoredFile | None:
        """Return an owner's file."""
        found = self._read(f"SELECT {_FILE_COLUMNS} FROM files WHERE id = ? AND owner = ?", (file_id, owner))
        return _file(found[0]) if found else None

    def files(self, owner: str) -> list[StoredFile]:
        """Return an owner's files, newest first."""
        found = self._read(
            f"SELECT {_FILE_COLUMNS} FROM files WHERE owner = ? ORDER BY created_s DESC, id DESC", (owner,)
        )
        return [_file(row) for row in found]

    def delete_file(self, file_id: str) -> None:
        """Delete a file and its record."""
        with self._change() as database:
            database.execute("DELETE FROM files WHERE id = ?", (file_id,))
        self.path_of(file_id).unlink(missing_ok=True)

    def delete_expired_files(self, now_s: float) -> None:
        """Delete files whose time is over, and contents that were begun long ago and never finished."""
        for (file_id,) in self._read("SELECT id FROM files WHERE expires_s < ?", (now_s,)):
            if not self.is_needed(file_id):
                self.delete_file(file_id)

    def delete_unfinished(self) -> None:
        """Delete contents without a record: uploads that the last process did not finish."""
        known = {row[0] for row in self._read("SELECT id FROM files")}
        for path in self._files.iterdir():
            if path.name not in known:
                path.unlink(missing_ok=True)

    def is_needed(self, file_id: str) -> bool:
        """Return whether a batch that has not ended reads a file."""
        marks = ", ".join("?" * len(OPEN_STATUSES))
        return bool(
            self._read(f"SELECT 1 FROM batches WHERE input_file = ? AND status IN ({marks})", (file_id, *OPEN_STATUSES))
        )

    def num_stored_bytes(self, owner: str) -> int:
        """Return the size of an owner's files."""
        size: int = self._read("SELECT coalesce(sum(num_bytes), 0) FROM files WHERE owner = ?", (owner,))[0][0]
        return size

    def num_open_requests(self, owner: str) -> int:
        """Return the rows of an owner's open batches."""
        marks = ", ".join("?" * len(OPEN_STATUSES))
        found = self._read(
            f"SELECT count(*) FROM rows WHERE batch_id IN"
            f" (SELECT id FROM batches WHERE owner = ? AND status IN ({marks}))",
            (owner, *OPEN_STATUSES),
        )
        number: int = found[0][0]
        return number

    def add_batch(self, new: NewBatch) -> str:
        """Add a batch that is to be validated, and return its id."""
        batch_id, now_s = f"batch_{uuid.uuid4().hex}", time.time()
        times = json.dumps({"created": now_s, "expires": now_s + new.window_s})
        metadata = None if new.metadata is None else json.dumps(dict(new.metadata))
        row = (batch_id, new.owner, new.key_id, new.tenant, BatchStatus.VALIDATING, new.endpoint, new.input_file_id)
        more = (new.completion_window, now_s + new.window_s, new.output_expires_after_s, metadata, times, "[]")
        with self._change() as database:
            database.execute(
                "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL, ?)",
                (*row, *more, BatchStatus.COMPLETED),
            )
        return batch_id

    def batch(self, owner: str, batch_id: str) -> Batch | None:
        """Return an owner's batch."""
        found = self._batches("id = ? AND owner = ?", (batch_id, owner))
        return found[0] if found else None

    def batches(self, owner: str) -> list[Batch]:
        """Return an owner's batches, newest first."""
        found = self._batches("owner = ?", (owner,))
        return sorted(found, key=lambda batch: (batch.times_s["created"], batch.id), reverse=True)

    def open_batches(self, *statuses: BatchStatus) -> list[OpenBatch]:
        """Return the batches in some states, oldest first."""
        marks = ", ".join("?" * len(statuses))
        found = self._read(
            "SELECT id, owner, key_id, tenant, status, endpoint, input_file, expires_s, output_expires_after_s, ending"
            f" FROM batches WHERE status IN ({marks}) ORDER BY json_extract(times_s, '$.created'), id",
            statuses,
        )
        batches = map(OpenBatch._make, found)
        return [batch._replace(status=BatchStatus(batch.status), ending=BatchStatus(batch.ending)) for batch in batches]

    def set_status(self, batch_id: str, status: BatchStatus, **columns: Any) -> None:
        """Change a batch's state, and other columns with it."""
        assignments = "".join(f", {name} = ?" for name in columns)
        with self._change() as database:
            database.execute(
                f"UPDATE batches SET status = ?, times_s = json_set(times_s, ?, ?){assignments} WHERE id = ?",
                (status, f"$.{status.value}", time.time(), *columns.values(), batch_id),
            )

    def add_rows(self, batch_id: str, rows: Sequence[InputRow]) -> None:
        """Add rows of a batch."""
        with self._change() as database:
            database.executemany(
                "INSERT INTO rows (batch_id, line, custom_id, offset, num_bytes) VALUES (?, ?, ?, ?, ?)",
                [(batch_id, *row) for row in rows],
            )

    def delete_rows(self, batch_id: str) -> None:
        """Delete the rows of a batch."""
        with self._change() as database:
            database.execute("DELETE FROM rows WHERE batch_id = ?", (batch_id,))

    def pending_lines(self, batch_id: str) -> list[int]:
        """Return the lines of rows without a result."""
        found = self._read("SELECT line FROM rows WHERE batch_id = ? AND status IS NULL ORDER BY line", (batch_id,))
        return [row[0] for row in found]

    def read_line(self, key: RowKey, input_file: str) -> bytes:
        """Read a row's line in its input file."""
        offset, num_bytes = self._read("SELECT offset, num_bytes FROM rows WHERE batch_id = ? AND line = ?", key)[0]
        with self.path_of(input_file).open("rb") as file:
            file.seek(offset)
            return file.read(num_bytes)

    def add_results(self, results: Iterable[RowResult]) -> None:
        """Store results; of those of one row, the first counts."""
        with self._change() as database:
            database.executemany(
                _RESULT,
                [(row.status, row.request_id, row.body, row.model, *row.usage, *row.key) for row in results],
            )

    def outcomes(self, batch_id: str) -> Iterator[RowOutcome]:
        """Yield a batch's rows in the order of the input."""
        line = -1
        while True:
            found = self._read(
                "SELECT line, custom_id, status, request_id, body FROM rows WHERE batch_id = ? AND line > ?"
                " ORDER BY line LIMIT 256",
                (batch_id, line),
            )
            if not found:
                return
            for line, custom_id, status, request_id, body in found:
                yield RowOutcome(
                    row_id=f"batch_req_{batch_id.removeprefix('batch_')}_{line}",
                    custom_id=custom_id,
                    status=status,
                    request_id=request_id or "",
                    body=body or b"",
                )

    def forget_bodies(self, batch_id: str) -> None:
        """Drop the responses of a batch, which are in its files now."""
        with self._change() as database:
            database.execute("UPDATE rows SET body = NULL WHERE batch_id = ?", (batch_id,))

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._database.close()

    def _batches(self, condition: str, values: Sequence[Any]) -> list[Batch]:
        found = self._read(
            "SELECT id, status, endpoint, input_file, completion_window, times_s, metadata, errors, output_file,"
            f" error_file FROM batches WHERE {condition}",
            values,
        )
        return [self._batch(*row) for row in found]

    def _batch(self, batch_id: str, status: str, *columns: Any) -> Batch:
        endpoint, input_file, window, times_s, metadata, errors, output_file, error_file = columns
        counts = self._read(_COUNTS, (batch_id,))[0]
        has_ended = status in (BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED)
        num_requests, num_completed, num_failed, *tokens, first_model, last_model = counts
        return Batch(
            id=batch_id,
            status=BatchStatus(status),
            endpoint=endpoint,
            input_file_id=input_file,
            completion_window=window,
            times_s=json.loads(times_s),
            metadata=None if metadata is None else json.loads(metadata),
            errors=json.loads(errors),
            output_file_id=output_file if has_ended else None,
            error_file_id=error_file if has_ended else None,
            model=first_model if first_model == last_model else None,
            num_requests=num_requests,
            num_completed=num_completed,
            num_failed=num_failed,
            usage=RowUsage(*tokens),
        )

    def _read(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock:
            return self._database.execute(query, tuple(values)).fetchall()

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction, which commits or leaves all as it was."""
        with self._lock, self._database:
            self._database.execute("BEGIN IMMEDIATE")
            yield self._database


def _file(row: Sequence[Any]) -> StoredFile:
    return StoredFile(id=row[0], filename=row[1], purpose=row[2], num_bytes=row[3], created_s=row[4], expires_s=row[5])


def encoded_errors(errors: Sequence[Mapping[str, Any]]) -> str:
    """Write a batch's errors for its column."""
    return json.dumps(list(errors))
