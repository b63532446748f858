"""Encodings of rows as bytes: JSON lines, compressed JSON lines, Parquet."""

import functools
import importlib
import io
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Literal, Protocol

import msgspec

from rayinfer.jobs.interfaces import SinkError
from rayinfer.jobs.storage.compression import Compression, check_compression, compress

RowMapping = Mapping[str, Any]
PartFormat = Literal["jsonl", "parquet"]


class Encoding(Protocol):
    """Encoding of many rows at once; the same rows always give the same bytes."""

    def begin(self, first_part: bytes | None) -> None:
        """Take what all parts share from the first one, or forget it."""

    def encode(self, rows: Sequence[RowMapping]) -> bytes:
        """Return the rows as they stand in the output."""

    def encode_pending(self, rows: Sequence[RowMapping]) -> bytes:
        """Return rows that wait for the others of their part, in a way that keeps their types."""

    def decode_pending(self, data: bytes) -> list[dict[str, Any]]:
        """Return the rows of `encode_pending`."""


class JsonlEncoding:
    """JSON lines, compressed or not."""

    def __init__(self, compression: Compression | None = None) -> None:
        check_compression(compression, SinkError)
        self._compression = compression

    def begin(self, first_part: bytes | None) -> None:
        """Do nothing: lines share nothing."""

    def encode(self, rows: Sequence[RowMapping]) -> bytes:
        """Return the rows as one gzip member or Zstandard frame, or plain."""
        return compress(encode_lines(rows), self._compression)

    def encode_pending(self, rows: Sequence[RowMapping]) -> bytes:
        """Return the rows as plain lines."""
        return encode_lines(rows)

    def decode_pending(self, data: bytes) -> list[dict[str, Any]]:
        """Return the rows of plain lines."""
        return [msgspec.json.decode(line) for line in data.splitlines()]


class ParquetEncoding:
    """Parquet files of one schema, that of the first part; columns without values there hold text."""

    def __init__(self) -> None:
        self._arrow = _arrow_module("pyarrow")
        self._parquet = _arrow_module("pyarrow.parquet")
        self.schema: Any = None

    def encode(self, rows: Sequence[RowMapping]) -> bytes:
        """Return the rows as a Parquet file."""
        if self.schema is None:
            self.begin(self._file_of(self._schema_of(rows).empty_table()))  # a resumed job finds it in the file
        text_columns = [field.name for field in self.schema if self._arrow.types.is_string(field.type)]
        as_text = [{**row, **{name: _as_text(row.get(name)) for name in text_columns}} for row in rows]
        unknown = sorted({name for row in rows for name in row} - set(self.schema.names))
        if unknown:
            raise SinkError(f"rows from {_first_id(rows)} on have columns that earlier ones have not: {unknown}")
        try:
            table = self._arrow.Table.from_pylist(as_text, schema=self.schema)
        except (self._arrow.ArrowInvalid, self._arrow.ArrowTypeError) as error:
            raise SinkError(
                f"rows from {_first_id(rows)} on do not fit the columns of the first part: {error}; write JSONL"
            ) from None
        return self._file_of(table)

    def encode_pending(self, rows: Sequence[RowMapping]) -> bytes:
        """Return the rows as an Arrow stream."""
        output = io.BytesIO()
        table = self._table(rows)
        with self._arrow.ipc.new_stream(output, table.schema) as writer:
            writer.write_table(table)
        return output.getvalue()

    def decode_pending(self, data: bytes) -> list[dict[str, Any]]:
        """Return the rows of an Arrow stream."""
        rows: list[dict[str, Any]] = self._arrow.ipc.open_stream(data).read_all().to_pylist()
        return rows

    def begin(self, first_part: bytes | None) -> None:
        """Take the schema of the first part that was written, or of the next one."""
        self.schema = None
        if first_part is not None:
            self.schema = self._parquet.read_schema(self._arrow.BufferReader(first_part)).remove_metadata()

    def _file_of(self, table: Any) -> bytes:
        output = io.BytesIO()
        self._parquet.write_table(table, output, compression="zstd")
        return output.getvalue()

    def _table(self, rows: Sequence[RowMapping]) -> Any:
        names = list(dict.fromkeys(name for row in rows for name in row))
        try:
            columns = {name: self._arrow.array([row.get(name) for row in rows]) for name in names}
        except (self._arrow.ArrowInvalid, self._arrow.ArrowTypeError) as error:
            raise SinkError(
                f"rows from {_first_id(rows)} on hold values of several types in one column: {error}; write JSONL"
            ) from None
        return self._arrow.table(columns)

    def _schema_of(self, rows: Sequence[RowMapping]) -> Any:
        arrow = self._arrow
        fields = []
        for field in self._table(rows).schema:
            is_empty = arrow.types.is_null(field.type)
            fields.append(arrow.field(field.name, arrow.string() if is_empty else field.type))
        return arrow.schema(fields)


def encode_lines(rows: Sequence[RowMapping]) -> bytes:
    """Return rows as JSON lines: compact, keys in the rows' order, what JSON has no type for as text."""
    encoder = _line_encoder()
    try:
        return b"".join(encoder.encode(row) + b"\n" for row in rows)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise SinkError(f"rows from {_first_id(rows)} on cannot be written as JSON: {error}") from None


@functools.cache
def _line_encoder() -> msgspec.json.Encoder:
    return msgspec.json.Encoder(enc_hook=_encodable)


def _encodable(value: object) -> object:
    """Return what stands in JSON for values of numpy."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _as_text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else encode_lines([{"": value}])[4:-2].decode()


def _first_id(rows: Sequence[RowMapping]) -> str:
    return f"{rows[0].get('id', '?')!r:.80}"


def _arrow_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise SinkError("Parquet needs the package pyarrow: install rayinfer[jobs]") from None
