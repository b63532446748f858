"""Adapters that operators have loaded while the service runs, in a table that all its routers share."""

import json
import time
import uuid
from dataclasses import asdict, dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterRecord:
    """An adapter that was loaded under a name, or with `removed` the end of whatever has the name by settings."""

    name: str
    base: str = ""
    folder: str = ""
    digest: str = ""
    removed: bool = False

    def encoded(self) -> bytes:
        """Write the record as JSON."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def decoded(text: bytes) -> "AdapterRecord":
        """Read what `encoded` has written."""
        return AdapterRecord(**json.loads(text))


class AdapterTable(Protocol):
    """Table of records by keys, which are written once and deleted; all calls may block."""

    def keys(self) -> list[str]:
        """List the keys."""
        ...

    def get(self, key: str) -> bytes | None:
        """Read a record; None where it was deleted."""
        ...

    def put(self, key: str, record: bytes) -> None:
        """Write a record."""
        ...

    def delete(self, key: str) -> None:
        """Delete a record, if it is there."""
        ...


class MemoryTable:
    """Table of one process."""

    def __init__(self) -> None:
        self._records: dict[str, bytes] = {}

    def keys(self) -> list[str]:
        """See AdapterTable."""
        return list(self._records)

    def get(self, key: str) -> bytes | None:
        """See AdapterTable."""
        return self._records.get(key)

    def put(self, key: str, record: bytes) -> None:
        """See AdapterTable."""
        self._records[key] = record

    def delete(self, key: str) -> None:
        """See AdapterTable."""
        self._records.pop(key, None)


class SharedAdapters:
    """Records of the table by the adapters' names: of several with one name the latest counts."""

    def __init__(self, table: AdapterTable) -> None:
        self._table = table
        self._records: dict[str, AdapterRecord] = {}  # by key, in no order

    def by_name(self) -> dict[str, AdapterRecord]:
        """Return the records as they were read last."""
        return {record.name: record for _, record in sorted(self._records.items())}

    def read(self) -> None:
        """Read what has changed in the table."""
        keys = self._table.keys()
        found = {key: self._records.get(key) or self._read(key) for key in keys}
        self._records = {key: record for key, record in found.items() if record is not None}

    def put(self, record: AdapterRecord) -> None:
        """Write a record in place of all others of its name."""
        key = f"{time.time_ns():020}-{uuid.uuid4().hex}"
        self._table.put(key, record.encoded())
        self._records = {**self._records, key: record}
        self._delete(record.name, kept=key)

    def delete(self, name: str) -> None:
        """Delete all records of a name."""
        self._delete(name)

    def _delete(self, name: str, kept: str = "") -> None:
        for key, record in list(self._records.items()):
            if record.name == name and key != kept:
                self._table.delete(key)
                self._records = {each: other for each, other in self._records.items() if each != key}

    def _read(self, key: str) -> AdapterRecord | None:
        text = self._table.get(key)
        return None if text is None else AdapterRecord.decoded(text)
