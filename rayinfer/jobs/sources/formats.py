"""Formats of inputs, and the opening of a source by its location."""

from pathlib import Path
from typing import Literal, get_args

from rayinfer.jobs.interfaces import SourceError
from rayinfer.jobs.sources.arrow_readers import ArrowReader, ParquetReader
from rayinfer.jobs.sources.dataset_folder import find_dataset
from rayinfer.jobs.sources.delimited_readers import CsvReader, TextReader
from rayinfer.jobs.sources.identified_rows import IdentifiedRows, ScanStore
from rayinfer.jobs.sources.image_reader import ImageReader
from rayinfer.jobs.sources.input_files import InputFile, find_input_files, is_folder
from rayinfer.jobs.sources.jsonl_reader import JsonlReader
from rayinfer.jobs.sources.record_readers import RecordReader
from rayinfer.jobs.storage.compression import check_compression, split_compression

SourceFormat = Literal["jsonl", "openai", "csv", "tsv", "text", "parquet", "arrow", "images"]
_ENDINGS: dict[str, SourceFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
    ".parquet": "parquet",
    ".arrow": "arrow",
    **dict.fromkeys((".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp"), "images"),
}
_COMPRESSIONS = ("", ".gz", ".zst", ".zstd")


def open_source(
    location: str | Path,
    *,
    format: SourceFormat | None = None,
    id_column: str | None = None,
    split: str | None = None,
    scan_store: ScanStore | None = None,
) -> IdentifiedRows:
    """Open a file, a pattern, a folder or a URL; the format is that of the name's ending unless given.

    Ids come from `id_column`; without one from `custom_id` or `id` where every row has it, else rows are numbered; an
    empty `id_column` numbers them always. `split` chooses a data set's part.
    """
    if format is not None and format not in get_args(SourceFormat):
        raise SourceError(f"format must be one of {', '.join(get_args(SourceFormat))}, got {format!r:.40}")
    reader = _folder_reader(str(location), format, split) if is_folder(location) else None
    if reader is None:
        reader = _reader_of(find_input_files(location, _endings_of(location)), format)
    return IdentifiedRows(reader, id_column, scan_store)


def _folder_reader(location: str, given: SourceFormat | None, split: str | None) -> RecordReader | None:
    """Read a folder as a data set of Arrow or Parquet files, if it is one."""
    if given not in (None, "parquet", "arrow"):
        return None
    dataset = find_dataset(location.rstrip("/"), split)
    if dataset is None:
        return None
    return ArrowReader(dataset.files) if dataset.is_arrow else ParquetReader(dataset.files)


def _reader_of(files: list[InputFile], given: SourceFormat | None) -> RecordReader:
    formats = {given or _format_of(file) for file in files}
    if len(formats) > 1:
        raise SourceError(f"{files[0].name} and {files[-1].name} have different formats; name the files of one")
    for file in files:
        check_compression(split_compression(file.name)[1], SourceError)
    match formats.pop():
        case "csv":
            return CsvReader(files)
        case "tsv":
            return CsvReader(files, "\t")
        case "text":
            return TextReader(files)
        case "parquet":
            return ParquetReader(files)
        case "arrow":
            return ArrowReader(files)
        case "images":
            return ImageReader(files)
        case chosen:
            return JsonlReader(files, batch_requests=chosen == "openai")


def _format_of(file: InputFile) -> SourceFormat:
    plain = split_compression(file.name)[0]
    for ending, found in _ENDINGS.items():
        if plain.endswith(ending):
            return found
    raise SourceError(f"{file.name}: its ending names no format ({', '.join(_ENDINGS)}, + .gz, .zst); give the format")


def _endings_of(location: str | Path) -> tuple[str, ...]:
    if not is_folder(location):
        return ()
    return tuple(ending + compression for ending in _ENDINGS for compression in _COMPRESSIONS)
