"""Log of usage on disk: an SQLite database with a write-ahead log, which survives the end of any process."""

import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rayinfer.access.usage import Usage, UsageKey, UsageRow
from rayinfer.errors import RayinferError

BUSY_S = 5.0  # several services may share a log
KEEP_BATCHES_S = 7 * 86400.0

_TABLES = """
CREATE TABLE IF NOT EXISTS usage (
    day TEXT, key_id TEXT, model TEXT, requests INTEGER, prompt_tokens INTEGER, cached_tokens INTEGER,
    output_tokens INTEGER, engine_s REAL, last_used_s REAL, PRIMARY KEY (day, key_id, model)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS usage_of_key ON usage (key_id, day);
CREATE TABLE IF NOT EXISTS keys (key_id TEXT PRIMARY KEY, last_used_s REAL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batches (router TEXT PRIMARY KEY, sequence INTEGER, time_s REAL) WITHOUT ROWID;
"""
_ADD = """
INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    requests = requests + excluded.requests, prompt_tokens = prompt_tokens + excluded.prompt_tokens,
    cached_tokens = cached_tokens + excluded.cached_tokens, output_tokens = output_tokens + excluded.output_tokens,
    engine_s = engine_s + excluded.engine_s, last_used_s = max(last_used_s, excluded.last_used_s)
"""
_USED = """
INSERT INTO keys VALUES (?, ?) ON CONFLICT DO UPDATE SET last_used_s = max(last_used_s, excluded.last_used_s)
"""
_LAST_USED = """
SELECT key_id, max(last_used_s)
FROM (SELECT key_id, last_used_s FROM keys UNION ALL SELECT key_id, last_used_s FROM usage) GROUP BY key_id
"""


class UsageLog:
    """Sums of usage by day, key and model; a batch counts once, however often it is sent."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)  # which its write-ahead log inherits
        try:
            self._database = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")  # commits survive this process; a power cut may not
            self._database.executescript(_TABLES)
        except sqlite3.Error as error:
            raise RayinferError(f"cannot open the usage log {path}: {error}") from None

    def record(self, router: str, sequence: int, rows: Sequence[UsageRow]) -> None:
        """Add a router's batch, unless it or a later one of that router is there already."""
        now = time.time()
        with self._database:  # commits, or leaves all as it was
            self._database.execute("BEGIN IMMEDIATE")
            found = self._database.execute("SELECT sequence FROM batches WHERE router = ?", (router,)).fetchone()
            if found is not None and found[0] >= sequence:
                return
            self._database.executemany(_ADD, [(*row.key, *row.usage, now) for row in rows])
            self._database.execute("INSERT OR REPLACE INTO batches VALUES (?, ?, ?)", (router, sequence, now))
            self._database.execute("DELETE FROM batches WHERE time_s < ?", (now - KEEP_BATCHES_S,))

    def note_used(self, last_used_s: Mapping[str, float]) -> None:
        """Note when keys were last used, by id, in seconds since 1970; harmless when repeated."""
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany(_USED, last_used_s.items())

    def rows(self, first_day: str = "", key_id: str | None = None) -> list[UsageRow]:
        """Return the usage since a day, of one key or all, by day and key."""
        found = self._database.execute(
            "SELECT day, key_id, model, requests, prompt_tokens, cached_tokens, output_tokens, engine_s FROM usage"
            " WHERE day >= ? AND (? IS NULL OR key_id = ?) ORDER BY day, key_id, model",
            (first_day, key_id, key_id),
        )
        return [UsageRow(UsageKey(*row[:3]), Usage(*row[3:])) for row in found]

    def output_tokens(self, day: str, key_id: str) -> int:
        """Return the tokens of a key's answers on a day."""
        found = self._database.execute(
            "SELECT sum(output_tokens) FROM usage WHERE day = ? AND key_id = ?", (day, key_id)
        ).fetchone()
        return found[0] or 0

    def all_output_tokens(self, day: str) -> dict[str, int]:
        """Return the tokens of all keys' answers on a day."""
        return dict(
            self._database.execute("SELECT key_id, sum(output_tokens) FROM usage WHERE day = ? GROUP BY key_id", (day,))
        )

    def last_used_s(self) -> dict[str, float]:
        """Return when each key was last used, with its tokens or otherwise, in seconds since 1970."""
        return dict(self._database.execute(_LAST_USED))

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def usage_log_path(key_file: Path) -> Path:
    """Return the path of the usage log beside a key file."""
    return key_file.with_name(key_file.stem + ".usage.sqlite")
