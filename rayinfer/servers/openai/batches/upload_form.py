"""Upload of a file as a form: the body goes to disk, for it may be larger than what memory should hold."""

import asyncio
import mmap
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from fastapi import Request

from rayinfer.errors import RequestError, UnsupportedContentType

MAX_PARTS = 16
MAX_FIELD_BYTES = 4096
MAX_HEAD_BYTES = 8192
MEMORY_BYTES = 2**20  # of a body that is kept in memory
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^;\s"]{1,70}))', re.IGNORECASE)
_NAME = re.compile(rb'[;\s]name="([^"\r\n]*)"', re.IGNORECASE)
_FILENAME = re.compile(rb'[;\s]filename="([^"\r\n]*)"', re.IGNORECASE)
_DISPOSITION = re.compile(rb"content-disposition:([^\r\n]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class UploadForm:
    """The fields of a form, and where in the body its file is."""

    fields: Mapping[str, str]
    filename: str
    begin: int
    end: int


@contextmanager
def body_file() -> Iterator[IO[bytes]]:
    """Make a file for a body."""
    with tempfile.TemporaryFile(prefix="rayinfer-upload-") as file:
        yield file


async def receive_body(request: Request, file: IO[bytes]) -> None:
    """Write a request's body to a file; disconnects are raised."""
    parts: list[bytes] = []
    num_bytes = 0
    async for part in request.stream():
        parts.append(part)
        num_bytes += len(part)
        if num_bytes >= MEMORY_BYTES:
            await asyncio.to_thread(file.writelines, parts)
            parts, num_bytes = [], 0
    await asyncio.to_thread(file.writelines, parts)
    await asyncio.to_thread(file.flush)


def read_form(file: IO[bytes], content_type: str) -> UploadForm:
    """Find the fields and the file of a form; raises RequestError."""
    if content_type.partition(";")[0].strip().lower() != "multipart/form-data":
        raise UnsupportedContentType(f"Content-Type must be multipart/form-data, got {content_type!r:.80}.")
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise _malformed("its Content-Type names no boundary")
    delimiter = b"--" + (found[1] or found[2]).encode("latin-1", errors="replace")
    if not file.seek(0, 2):
        raise _malformed("it is empty")
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as body:
        return _parts(body, delimiter)


def _parts(body: mmap.mmap, delimiter: bytes) -> UploadForm:
    fields: dict[str, str] = {}
    content: tuple[str, int, int] | None = None
    if body[: len(delimiter)] != delimiter:
        raise _malformed("it does not begin with its boundary")
    place = len(delimiter)
    for _ in range(MAX_PARTS):
        if body[place : place + 2] == b"--":
            break
        head_end = body.find(b"\r\n\r\n", place, place + MAX_HEAD_BYTES)
        end = body.find(b"\r\n" + delimiter, place)
        if head_end < 0 or end < 0:
            raise _malformed("a part has no head or no end")
        name, filename = _names(body[place : head_end + 2])
        begin = min(head_end + 4, end)
        if filename is not None and name == "file":
            content = filename, begin, end
        elif end - begin > MAX_FIELD_BYTES:
            raise _malformed(f"the field {name!r:.40} is longer than {MAX_FIELD_BYTES} bytes")
        else:
            fields[name] = body[begin:end].decode(errors="replace")
        place = end + 2 + len(delimiter)
    else:
        raise _malformed(f"it has more than {MAX_PARTS} parts")
    if content is None:
        raise RequestError("The form has no file in the field 'file'.", "file", "missing_required_parameter")
    return UploadForm(fields, *content)


def _names(head: bytes) -> tuple[str, str | None]:
    disposition = _DISPOSITION.search(head)
    name = None if disposition is None else _NAME.search(disposition[1])
    if disposition is None or name is None:
        raise _malformed("a part has no name")
    filename = _FILENAME.search(disposition[1])
    return name[1].decode(errors="replace"), None if filename is None else filename[1].decode(errors="replace")


def _malformed(reason: str) -> RequestError:
    return RequestError(f"The request's body is not a form with a file: {reason}.", code="invalid_multipart")
