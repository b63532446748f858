"""Readers of Parquet files and of Arrow files, such as data sets that Hugging Face's `save_to_disk` writes."""

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any, cast

from rayinfer.jobs.interfaces import SourceError
from rayinfer.jobs.sources.input_files import InputFile
from rayinfer.jobs.sources.record_readers import Record, Start

_BATCH_ROWS = 1024


class ParquetReader:
    """Records of Parquet files; reading starts at any row group."""

    def __init__(self, files: Sequence[InputFile]) -> None:
        self.files = files
        self._parquet = _arrow_module("pyarrow.parquet")
        self._rows_of_files = [self._num_rows(file) for file in files]
        self.num_records = sum(self._rows_of_files)

    @cached_property
    def columns(self) -> Sequence[str]:
        """Names of the first file's columns."""
        with self._opened(self.files[0]) as file:
            return cast(Sequence[str], file.schema_arrow.names)

    def read(self, start: Start, columns: Sequence[str] | None = None) -> Iterator[Record]:
        """Yield the records from an index on; row groups before it are not read."""
        index = start.index
        first = 0
        for file, num_rows in zip(self.files, self._rows_of_files, strict=True):
            if index < first + num_rows:
                for data in self._rows(file, index - first, columns):
                    index += 1
                    yield Record(data, index)
            first += num_rows

    def _rows(self, input_file: InputFile, skip: int, columns: Sequence[str] | None) -> Iterator[dict[str, Any]]:
        with self._opened(input_file) as file:
            groups: list[int] = []
            for group in range(file.num_row_groups):
                group_rows = file.metadata.row_group(group).num_rows
                if groups or skip < group_rows:
                    groups.append(group)
                else:
                    skip -= group_rows
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=columns):
                if skip < batch.num_rows:
                    yield from batch.slice(skip).to_pylist()
                skip = max(0, skip - batch.num_rows)

    def _num_rows(self, input_file: InputFile) -> int:
        with self._opened(input_file) as file:
            return int(file.metadata.num_rows)

    @contextlib.contextmanager
    def _opened(self, input_file: InputFile) -> Iterator[Any]:
        with input_file.open() as raw, _arrow_errors(input_file), self._parquet.ParquetFile(raw) as file:
            yield file


class ArrowReader:
    """Records of Arrow files, streams or not; local ones are mapped, so rows before the start cost nothing."""

    columns = None

    def __init__(self, files: Sequence[InputFile], num_records: int | None = None) -> None:
        self.files = files
        self.num_records = num_records
        self._arrow = _arrow_module("pyarrow")
        self._ipc = _arrow_module("pyarrow.ipc")

    def read(self, start: Start, columns: Sequence[str] | None = None) -> Iterator[Record]:
        """Yield the records from an index on."""
        skip, index = start.index, start.index
        for file in self.files:
            for batch in self._batches(file):
                if skip < batch.num_rows:
                    taken = batch.slice(skip)
                    if columns is not None:
                        taken = taken.select([name for name in columns if name in taken.schema.names])
                    for data in taken.to_pylist():
                        index += 1
                        yield Record(data, index)
                skip = max(0, skip - batch.num_rows)

    def _batches(self, input_file: InputFile) -> Iterator[Any]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_arrow_errors(input_file))
            if input_file.remote is None:
                raw = stack.enter_context(self._arrow.memory_map(input_file.path))
            else:
                raw = self._arrow.PythonFile(stack.enter_context(input_file.open()))
            try:
                reader = self._ipc.open_file(raw)
            except self._arrow.ArrowInvalid:
                raw.seek(0)
                yield from self._ipc.open_stream(raw)
                return
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)


@contextlib.contextmanager
def _arrow_errors(input_file: InputFile) -> Iterator[None]:
    arrow = _arrow_module("pyarrow")
    try:
        yield
    except (arrow.ArrowException, OSError) as error:
        raise SourceError(f"{input_file.name}: cannot be read: {str(error).splitlines()[0]}") from None


def _arrow_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise SourceError("Parquet and Arrow files need the package pyarrow: install rayinfer[jobs]") from None
