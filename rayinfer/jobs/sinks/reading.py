"""Reading of finished outputs, for verification: ids in order, and digests."""

import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rayinfer.jobs.interfaces import SinkError
from rayinfer.jobs.sinks.digests import file_digest
from rayinfer.jobs.sinks.formats import sink_format
from rayinfer.jobs.sinks.part_targets import chained_digest, part_names
from rayinfer.jobs.sources.arrow_readers import ParquetReader
from rayinfer.jobs.sources.input_files import find_input_files, is_folder
from rayinfer.jobs.sources.jsonl_reader import JsonlReader
from rayinfer.jobs.sources.record_readers import RecordReader, Start
from rayinfer.jobs.storage.locations import local_path
from rayinfer.jobs.storage.stores import open_store

_PART_ENDINGS = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")


def output_ids(location: str | Path, column: str = "id") -> Iterator[str]:
    """Yield the ids of an output's rows in order, which are in this column."""
    if sink_format(location) == "sqlite":
        yield from _ids_of_database(local_path(location))
        return
    if is_folder(location) and not part_names(open_store(location, SinkError)):
        return  # of an input without rows
    files = find_input_files(location, _PART_ENDINGS if is_folder(location) else ())
    is_parquet = all(file.name.endswith(".parquet") for file in files)
    reader: RecordReader = ParquetReader(files) if is_parquet else JsonlReader(files)
    for index, record in enumerate(reader.read(Start(), [column])):
        row_id = record.data.get(column)
        if record.error is not None or not isinstance(row_id, str):
            raise SinkError(f"{location}: row {index} has no {column}: {record.error or row_id!r:.80}")
        yield row_id


def wrong_digests(location: str | Path, described: Mapping[str, Any]) -> list[str]:
    """Return how an output differs from its sink's description."""
    if "files" in described:
        return [problem for file in described["files"] for problem in _wrong_file(local_path(location), file)]
    if "num_parts" in described:
        return _wrong_parts(location, described)
    return [f"{location}: the commit record does not describe the output"]


def _wrong_file(path: Path, described: Mapping[str, Any]) -> list[str]:
    if not path.exists():
        return [f"{path}: is missing"]
    found = file_digest(path)
    same = all(found[name] == described[name] for name in found)
    return [] if same else [f"{path}: was changed: {found['bytes']} bytes, {described['bytes']} were written"]


def _wrong_parts(location: str | Path, described: Mapping[str, Any]) -> list[str]:
    store = open_store(location, SinkError)
    names = part_names(store)
    if len(names) != described["num_parts"]:
        return [f"{location}: has {len(names)} parts, {described['num_parts']} were written"]
    digest = ""
    for name in names:
        digest = chained_digest(digest, store.read(name) or b"")
    return [] if digest == described["digest"] else [f"{location}: a part was changed"]


def _ids_of_database(path: Path) -> Iterator[str]:
    try:
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            yield from (row[0] for row in database.execute("SELECT id FROM rows ORDER BY number"))
        finally:
            database.close()
    except sqlite3.Error as error:
        raise SinkError(f"{path}: cannot be read: {error}") from None
