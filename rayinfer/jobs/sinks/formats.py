"""Formats of outputs, and the opening of a sink by its location."""

from pathlib import Path
from typing import Literal, get_args

from rayinfer.jobs.interfaces import RowSink, SinkError
from rayinfer.jobs.sinks.encodings import JsonlEncoding, ParquetEncoding
from rayinfer.jobs.sinks.jsonl_sink import JsonlSink
from rayinfer.jobs.sinks.part_sink import PartSink
from rayinfer.jobs.sinks.part_targets import FrameFile, PartFolder
from rayinfer.jobs.sinks.sqlite_sink import SqliteSink
from rayinfer.jobs.storage.compression import Compression, split_compression
from rayinfer.jobs.storage.disk import Disk
from rayinfer.jobs.storage.locations import is_url, local_path
from rayinfer.jobs.storage.stores import open_store

SinkFormat = Literal["jsonl", "parquet", "sqlite"]
ROWS_PER_PART = 10_000  # of a folder or an object store
ROWS_PER_FRAME = 1_000  # of a compressed file
_ENDINGS: dict[str, SinkFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".sqlite": "sqlite",
    ".db": "sqlite",
}
_COMPRESSION_ENDINGS = {"gzip": ".gz", "zstd": ".zst", None: ""}


def open_sink(
    location: str | Path,
    *,
    format: SinkFormat | None = None,
    rows_per_part: int | None = None,
    disk: Disk | None = None,
) -> RowSink:
    """Make the sink of a path or URL, whose ending names its format and compression; `open` begins it.

    A path ending in .jsonl or .sqlite is one file, as is .jsonl.gz or .jsonl.zst; .parquet, a path that ends in a
    slash, and every URL is a folder of parts.
    """
    compression = split_compression(str(location).rstrip("/"))[1]
    chosen = sink_format(location, format)
    if chosen == "sqlite":
        if is_url(location) or compression:
            raise SinkError(f"{location}: an SQLite database is one local file, not compressed")
        return SqliteSink(local_path(location), disk)
    if chosen == "parquet":
        if compression:
            raise SinkError(f"{location}: Parquet is compressed in itself")
        return _part_folder(location, "parquet", None, rows_per_part, disk)
    if is_url(location) or str(location).endswith("/"):
        return _part_folder(location, "jsonl", compression, rows_per_part, disk)
    if compression is None:
        return JsonlSink(local_path(location), disk)
    frames = FrameFile(local_path(location), disk)
    return PartSink(frames, JsonlEncoding(compression), _checked(rows_per_part or ROWS_PER_FRAME))


def _part_folder(
    location: str | Path,
    format: Literal["jsonl", "parquet"],
    compression: Compression | None,
    rows_per_part: int | None,
    disk: Disk | None,
) -> PartSink:
    store = open_store(location, SinkError, disk)
    ending = f".{format}{_COMPRESSION_ENDINGS[compression]}"
    encoding = ParquetEncoding() if format == "parquet" else JsonlEncoding(compression)
    return PartSink(PartFolder(store, ending), encoding, _checked(rows_per_part or ROWS_PER_PART))


def _checked(rows_per_part: int) -> int:
    if rows_per_part < 1:
        raise SinkError(f"rows_per_part must be at least 1, got {rows_per_part}")
    return rows_per_part


def sink_format(location: str | Path, given: SinkFormat | None = None) -> SinkFormat:
    """Return the format of an output: the given one, or that of its ending."""
    if given is not None:
        if given not in get_args(SinkFormat):
            raise SinkError(f"format must be one of {', '.join(get_args(SinkFormat))}, got {given!r:.40}")
        return given
    for ending, found in _ENDINGS.items():
        if split_compression(str(location).rstrip("/"))[0].endswith(ending):
            return found
    raise SinkError(f"{location}: its ending names no format ({', '.join(_ENDINGS)}); give the format")
