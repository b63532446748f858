"""Sink of rows in an SQLite database: a table `rows` with number, id, error and the whole row as JSON."""

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rayinfer.jobs.interfaces import LeaseLost, SinkError, SinkOffset
from rayinfer.jobs.sinks.digests import file_digest
from rayinfer.jobs.sinks.encodings import RowMapping, encode_lines
from rayinfer.jobs.storage.disk import Disk

_COLUMNS = "(number INTEGER PRIMARY KEY, id TEXT, error TEXT, row TEXT NOT NULL)"
_TABLES = f"""
CREATE TABLE IF NOT EXISTS rows {_COLUMNS};
CREATE TABLE IF NOT EXISTS writer (number INTEGER NOT NULL);
"""
_BUSY_S = 30.0
_BUFFERED_ROWS = 10_000


class SqliteSink:
    """Rows in one local SQLite database; of two writers only the last one's transactions succeed."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self._path = path
        self._partial = path.with_name(f".{path.name}.partial")
        self._disk = disk or Disk()
        self._database: sqlite3.Connection | None = None
        self._buffered: list[tuple[int, str | None, str | None, str]] = []
        self._num_rows = 0
        self._writer = 0

    def exists(self) -> bool:
        """Say whether a file has the output's name."""
        return self._path.exists()

    def open(self, offset: SinkOffset | None, *, fence: bool = False) -> None:
        """Remove the rows after the offset, or all; an earlier writer's transactions fail from now on."""
        self.close()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if offset is None:
            self._remove(self._partial)
        elif not self._partial.exists():
            if not self._path.exists():
                raise SinkError(f"{self._partial}: the unfinished output is not there any more; start the job anew")
            self._disk.replace(self._path, self._partial)
        self._num_rows = 0 if offset is None else offset["rows"]
        with self._errors():
            self._database = sqlite3.connect(
                self._partial, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.executescript(_TABLES)
            self._begin()
        self._disk.sync_folder(self._path.parent)

    def write(self, rows: Sequence[RowMapping]) -> None:
        """Append rows."""
        for row in rows:
            row_id, error = row.get("id"), row.get("error")
            content = encode_lines([row])[:-1].decode()
            self._buffered.append((self._num_rows, _text(row_id), _text(error), content))
            self._num_rows += 1
        if len(self._buffered) >= _BUFFERED_ROWS:
            self._insert()

    def flush(self) -> SinkOffset:
        """Commit the rows so far."""
        self._insert()
        return {"rows": self._num_rows}

    def finalize(self) -> dict[str, Any]:
        """Copy the rows into a database of always the same bytes, and give it its name."""
        self._insert()
        database = self._opened()
        compact = self._path.with_name(f".{self._path.name}.compact")
        with self._errors():
            self._check_writer(database)
            self._remove(compact)
            database.execute("ATTACH ? AS compact", (str(compact),))
            with database:
                database.execute("BEGIN")
                database.execute(f"CREATE TABLE compact.rows {_COLUMNS}")
                database.execute("INSERT INTO compact.rows SELECT * FROM main.rows ORDER BY number")
        self.close()
        with compact.open("r+b") as file:
            self._disk.sync(file)
        self._disk.replace(compact, self._path)
        self._disk.sync_folder(self._path.parent)
        self._remove(self._partial)
        return {"files": [{"name": self._path.name, **file_digest(self._path)}]}

    def clean_up(self) -> None:
        """Do nothing: a finished database stands alone."""

    def close(self) -> None:
        """Close the database; rows after the last `flush` may be lost."""
        self._buffered = []
        if self._database is not None:
            self._database.close()
            self._database = None

    def _begin(self) -> None:
        database = self._opened()
        with database:
            database.execute("BEGIN IMMEDIATE")
            found = database.execute("SELECT count(*) FROM rows WHERE number < ?", (self._num_rows,)).fetchone()[0]
            if found < self._num_rows:
                raise SinkError(f"{self._partial}: has {found} rows, fewer than the {self._num_rows} of the checkpoint")
            database.execute("DELETE FROM rows WHERE number >= ?", (self._num_rows,))
            self._writer = 1 + (database.execute("SELECT max(number) FROM writer").fetchone()[0] or 0)
            database.execute("DELETE FROM writer")
            database.execute("INSERT INTO writer VALUES (?)", (self._writer,))

    def _insert(self) -> None:
        database = self._opened()
        with self._errors(), database:
            database.execute("BEGIN IMMEDIATE")
            self._check_writer(database)
            database.executemany("INSERT INTO rows VALUES (?, ?, ?, ?)", self._buffered)
        self._buffered = []

    def _check_writer(self, database: sqlite3.Connection) -> None:
        if database.execute("SELECT number FROM writer").fetchone() != (self._writer,):
            raise LeaseLost(f"{self._partial}: another copy of the job writes to it now")

    def _opened(self) -> sqlite3.Connection:
        assert self._database is not None
        return self._database

    def _remove(self, path: Path) -> None:
        for ending in ("", "-journal"):
            self._disk.remove(path.with_name(path.name + ending))

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise SinkError(f"{self._partial}: cannot be written: {error}") from None


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()
