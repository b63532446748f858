"""Output and error files of a batch: a line for each row, in the order of the input."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import IO


@dataclass(frozen=True, kw_only=True, slots=True)
class RowOutcome:
    """A row with its response; without one (`status` None) it was not computed in time."""

    row_id: str
    custom_id: str
    status: int | None
    request_id: str
    body: bytes


def write_output_files(
    rows: Iterable[RowOutcome], output: Path, errors: Path, *, missing: tuple[str, str]
) -> tuple[int, int]:
    """Write both files and make them durable; returns their sizes in bytes, and removes a file without lines.

    `missing` is the code and message of rows that have no response.
    """
    parts = [path.with_name(path.name + ".part") for path in (output, errors)]
    with parts[0].open("wb") as succeeded, parts[1].open("wb") as failed:
        for row in rows:
            is_good = row.status is not None and row.status < HTTPStatus.BAD_REQUEST
            (succeeded if is_good else failed).write(_line(row, missing))
        sizes = (_make_durable(succeeded), _make_durable(failed))
    for part, path, size in zip(parts, (output, errors), sizes, strict=True):
        if size:
            part.replace(path)
        else:
            part.unlink()
    fsync_folder(output.parent)
    return sizes


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _line(row: RowOutcome, missing: tuple[str, str]) -> bytes:
    head = b'{"id":%s,"custom_id":%s,"response":' % (_json(row.row_id), _json(row.custom_id))
    if row.status is None:
        error = {"code": missing[0], "message": missing[1]}
        return head + b'null,"error":' + _json(error) + b"}\n"
    response = b'{"status_code":%d,"request_id":%s,"body":%s}' % (row.status, _json(row.request_id), row.body)
    return head + response + b',"error":null}\n'


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _make_durable(file: IO[bytes]) -> int:
    file.flush()
    os.fsync(file.fileno())
    return file.tell()
