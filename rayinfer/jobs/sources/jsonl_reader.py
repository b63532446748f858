"""Reader of JSON lines: one object a line, and OpenAI's batch files, whose objects have given fields."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import msgspec

from rayinfer.jobs.sources.input_files import InputFile
from rayinfer.jobs.sources.record_readers import Record, Start
from rayinfer.jobs.sources.text_lines import Line, lines_of, opened_files

_JSON_KINDS = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


class JsonlReader:
    """Objects of JSON lines; empty lines are none."""

    num_records = None
    columns = None

    def __init__(self, files: Sequence[InputFile], *, batch_requests: bool = False) -> None:
        self.files = files
        self._batch_requests = batch_requests

    def read(self, start: Start, columns: Sequence[str] | None = None) -> Iterator[Record]:
        """Yield the objects from a position on."""
        decode = self._decode if columns is None else _decoder_of(columns)
        for opened in opened_files(self.files, start.position):
            for line in lines_of(opened):
                if not line.content.isspace():
                    yield self._record(line, decode)

    @cached_property
    def _decode(self) -> Any:
        return msgspec.json.Decoder().decode

    def _record(self, line: Line, decode: Any) -> Record:
        try:
            data = decode(line.content)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return Record({}, line.position, f"no JSON object: {error}")
        if not isinstance(data, dict):
            return Record({}, line.position, f"no JSON object but {_JSON_KINDS.get(type(data), type(data).__name__)}")
        wrong = _wrong_batch_request(data) if self._batch_requests and decode is self._decode else None
        return Record(data, line.position, wrong)


def _decoder_of(columns: Sequence[str]) -> Any:
    """Return a decoder that builds some columns only, several times as fast where rows are long."""
    fields = [(f"c{number}", Any, msgspec.UNSET) for number in range(len(columns))]
    names = {f"c{number}": column for number, column in enumerate(columns)}
    decoder = msgspec.json.Decoder(msgspec.defstruct("Columns", fields, rename=names))

    def decode(content: bytes) -> dict[str, Any]:
        found = decoder.decode(content)
        values = zip(columns, (getattr(found, field) for field in names), strict=True)
        return {column: value for column, value in values if value is not msgspec.UNSET}

    return decode


def _wrong_batch_request(data: dict[str, Any]) -> str | None:
    """Return what is wrong with a line of an OpenAI batch file."""
    for field, kind in (("custom_id", str), ("method", str), ("url", str), ("body", dict)):
        if not isinstance(data.get(field), kind):
            kind_name = "an object" if kind is dict else "a string"
            return f"{field} of a batch request must be {kind_name}"
    return None if data["method"] == "POST" else f"method of a batch request must be POST, got {data['method']!r:.40}"
