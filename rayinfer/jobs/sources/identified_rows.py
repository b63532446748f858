"""Rows with unique ids: those of a column, checked in one pass over the input, or the rows' numbers."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import numpy as np
import xxhash

from rayinfer.jobs.interfaces import Position, Row, SourceError
from rayinfer.jobs.sources.record_readers import RecordReader, Start

ID_COLUMNS = ("custom_id", "id")  # taken where every row has one
MAX_DUPLICATES = 5000  # beyond, the column holds no ids
_SCAN_NAME = "input.json"
_BLOCK = 1 << 16


class ScanStore(Protocol):
    """Place that keeps the result of the pass over an input, so that a resumed job needs none."""

    def read(self, name: str) -> bytes | None:
        """Return what was written, or None."""

    def write(self, name: str, data: bytes) -> None:
        """Write durably."""


@dataclass(frozen=True, slots=True)
class Scan:
    """Result of one pass over an input's ids."""

    digest: str  # of the input it belongs to
    id_column: str | None  # None: the rows' numbers
    num_rows: int
    duplicates: dict[int, int] = field(default_factory=dict)  # row with an id that this earlier row has


class IdentifiedRows:
    """Source whose rows have ids; the `RowSource` of all formats."""

    def __init__(self, reader: RecordReader, id_column: str | None = None, store: ScanStore | None = None) -> None:
        self._reader = reader
        self._asked_column = id_column
        self._store = store
        self.digest = self._digest()
        self._scan = self._cached_scan() or self._new_scan()
        self.num_rows: int | None = self._scan.num_rows

    @property
    def id_column(self) -> str | None:
        """Column of the ids; None where rows are numbered."""
        return self._scan.id_column

    def rows(self, after: Position | None = None) -> Iterator[Row]:
        """Yield the rows after a position."""
        start = Start() if after is None else Start(after.index + 1, after.position)
        for index, record in enumerate(self._reader.read(start), start.index):
            given = self._given_id(index, record.data)
            error = record.error or self._wrong_id(index, given, record.data)
            row_id = given if given is not None and index not in self._scan.duplicates else f"row-{index}"
            yield Row(index, row_id, record.data, record.position, error)

    def _given_id(self, index: int, data: dict[str, Any]) -> str | None:
        return str(index) if self._scan.id_column is None else _as_id(data.get(self._scan.id_column))

    def _wrong_id(self, index: int, given: str | None, data: dict[str, Any]) -> str | None:
        column = self._scan.id_column
        if given is None:
            return f"{column} must be a string or an integer" if column in data else f"has no {column}"
        if index in self._scan.duplicates:
            return f"{column} {given[:80]!r} is that of row {self._scan.duplicates[index]}, too"
        return None

    def _digest(self) -> str:
        files = [file.identity for file in self._reader.files]
        read_as = [type(self._reader).__name__, self._asked_column]
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode([files, read_as]))

    def _cached_scan(self) -> Scan | None:
        content = self._store.read(_SCAN_NAME) if self._store is not None else None
        if content is None:
            return None
        try:
            scan = msgspec.json.decode(content, type=Scan)
        except msgspec.DecodeError:
            return None  # damaged: found again
        return scan if scan.digest == self.digest else None

    def _new_scan(self) -> Scan:
        scan = scan_ids(self._reader, self._asked_column, self.digest)
        if self._store is not None:
            self._store.write(_SCAN_NAME, msgspec.json.encode(scan))
        return scan


def scan_ids(reader: RecordReader, asked_column: str | None, digest: str) -> Scan:
    """Choose the column of the ids, count the rows and find ids that occur twice; 8 bytes a row, or nothing."""
    candidates = _candidates(reader, asked_column)
    if not candidates and reader.num_records is not None:
        return Scan(digest, None, reader.num_records)
    hashes = {column: _Hashes() for column in candidates}
    num_rows, complete = 0, set(candidates)
    for record in reader.read(Start(), candidates or None):
        for column in candidates:
            given = _as_id(record.data.get(column)) if record.error is None else None
            if given is None and record.error is None and column in complete and column != asked_column:
                complete.discard(column)
            hashes[column].append(f"row-{num_rows}" if given is None else given)
        num_rows += 1
    chosen = next((column for column in candidates if column in complete), None)
    if chosen is None:
        return Scan(digest, None, num_rows)
    return Scan(digest, chosen, num_rows, _find_duplicates(reader, chosen, hashes[chosen].repeated()))


def _candidates(reader: RecordReader, asked_column: str | None) -> list[str]:
    """Return columns that may hold the ids; an empty name asks for none."""
    if asked_column == "":
        return []
    if asked_column is not None:
        if reader.columns is not None and asked_column not in reader.columns:
            raise SourceError(f"{reader.files[0].name}: has no column {asked_column}, but {', '.join(reader.columns)}")
        return [asked_column]
    return [column for column in ID_COLUMNS if reader.columns is None or column in reader.columns]


def _find_duplicates(reader: RecordReader, column: str, repeated: set[int]) -> dict[int, int]:
    """Compare the ids whose hashes are equal, in a second pass if there are any."""
    first_rows: dict[str, int] = {}
    duplicates: dict[int, int] = {}
    if not repeated:
        return duplicates
    for index, record in enumerate(reader.read(Start(), [column])):
        given = _as_id(record.data.get(column)) if record.error is None else f"row-{index}"
        if given is None or _hash(given) not in repeated:
            continue
        if first_rows.setdefault(given, index) != index:
            duplicates[index] = first_rows[given]
        if len(duplicates) > MAX_DUPLICATES:
            raise SourceError(
                f"{reader.files[0].name}: {column} names no rows: more than {MAX_DUPLICATES} of its values occur twice;"
                " choose another column for the ids, or none"
            )
    return duplicates


def _as_id(value: object) -> str | None:
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _hash(value: str) -> int:
    return xxhash.xxh3_64_intdigest(value.encode("utf-8", "surrogatepass"))


class _Hashes:
    """Hashes of ids, eight bytes each."""

    def __init__(self) -> None:
        self._blocks: list[np.ndarray] = []
        self._last: list[int] = []

    def append(self, value: str) -> None:
        """Append an id's hash."""
        self._last.append(_hash(value))
        if len(self._last) == _BLOCK:
            self._blocks.append(np.array(self._last, dtype=np.uint64))
            self._last.clear()

    def repeated(self) -> set[int]:
        """Return the hashes that occur more than once."""
        ordered = np.concatenate([*self._blocks, np.array(self._last, dtype=np.uint64)])
        ordered.sort()
        return set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
