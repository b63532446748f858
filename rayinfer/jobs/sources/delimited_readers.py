"""Readers of CSV and TSV with a header line, and of plain text."""

import contextlib
import csv
from collections.abc import Iterator, Sequence

from rayinfer.jobs.interfaces import SourceError
from rayinfer.jobs.sources.input_files import InputFile
from rayinfer.jobs.sources.record_readers import Record, Start
from rayinfer.jobs.sources.text_lines import Line, OpenedFile, lines_of, opened_files

_NOT_UTF8 = "not UTF-8"
_LINE_ENDS = "\r\n"


class TextReader:
    """Lines of text as records with the one column `text`; empty lines are none."""

    num_records = None
    columns = ("text",)

    def __init__(self, files: Sequence[InputFile]) -> None:
        self.files = files

    def read(self, start: Start, columns: Sequence[str] | None = None) -> Iterator[Record]:
        """Yield the lines from a position on."""
        for opened in opened_files(self.files, start.position):
            for line in lines_of(opened):
                if line.content.isspace():
                    continue
                try:
                    yield Record({"text": line.content.decode().rstrip(_LINE_ENDS)}, line.position)
                except UnicodeDecodeError:
                    yield Record({}, line.position, _NOT_UTF8)


class CsvReader:
    """Records of CSV or TSV files; all values are strings, and the first line of each file names the columns."""

    num_records = None

    def __init__(self, files: Sequence[InputFile], delimiter: str = ",") -> None:
        self.files = files
        self._delimiter = delimiter
        self.columns = _header_of(files[0], delimiter)
        for file in files[1:]:
            if _header_of(file, delimiter) != self.columns:
                raise SourceError(f"{file.name}: its columns are not those of {files[0].name}")

    def read(self, start: Start, columns: Sequence[str] | None = None) -> Iterator[Record]:
        """Yield the records from a position on."""
        for opened in opened_files(self.files, start.position):
            yield from self._records_of(opened)

    def _records_of(self, opened: OpenedFile) -> Iterator[Record]:
        lines = _CountedLines(lines_of(opened))
        reader = csv.reader(lines, delimiter=self._delimiter, strict=True)
        is_header = opened.offset == 0
        while True:
            try:
                values = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield Record({}, lines.position, f"no CSV: {error}")
                continue
            if is_header or not values:
                is_header = False
                continue
            yield self._record(values, lines.position)

    def _record(self, values: list[str], position: int) -> Record:
        if len(values) != len(self.columns):
            return Record({}, position, f"{len(values)} values for {len(self.columns)} columns")
        if not all(map(_is_text, values)):
            return Record({}, position, _NOT_UTF8)
        return Record(dict(zip(self.columns, values, strict=True)), position)


class _CountedLines:
    """Lines as strings, and the position after the last one taken: a record may span several."""

    def __init__(self, lines: Iterator[Line]) -> None:
        self._lines = lines
        self.position = 0

    def __iter__(self) -> "_CountedLines":
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.position = line.position
        return line.content.decode("utf-8", "surrogateescape")


def _header_of(file: InputFile, delimiter: str) -> list[str]:
    with contextlib.closing(opened_files([file], None)) as files:
        try:
            header = next(csv.reader(_CountedLines(lines_of(next(files))), delimiter=delimiter, strict=True), None)
        except csv.Error as error:
            raise SourceError(f"{file.name}: no CSV: {error}") from None
    if not header or not all(map(_is_text, header)):
        raise SourceError(f"{file.name}: its first line names no columns")
    if len(set(header)) < len(header):
        raise SourceError(f"{file.name}: two of its columns have the same name")
    return header


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
