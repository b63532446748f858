"""Bodies of forms with files, multipart/form-data, within bounds."""

import re
from typing import NamedTuple

from rayinfer.errors import RequestError

MAX_PARTS = 64
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^;\s"]{1,70}))', re.IGNORECASE)
_NAME = re.compile(rb'content-disposition:[^\r\n]*?[;\s]name="([^"\r\n]*)"', re.IGNORECASE)


class Part(NamedTuple):
    """A field of a form and its content."""

    name: str
    content: bytes


def read_parts(body: bytes, content_type: str) -> list[Part]:
    """Split a body into its parts; raises RequestError."""
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise _malformed("its Content-Type names no boundary")
    delimiter = b"\r\n--" + (found[1] or found[2]).encode("latin-1", errors="replace")
    pieces = (b"\r\n" + body).split(delimiter, MAX_PARTS + 2)
    if len(pieces) > MAX_PARTS + 2:
        raise _malformed(f"it has more than {MAX_PARTS} parts")
    if len(pieces) < 3 or not pieces[-1].startswith(b"--"):
        raise _malformed("it has no parts, or no end")
    return [_part(piece) for piece in pieces[1:-1]]


def _part(piece: bytes) -> Part:
    head, blank, content = piece.partition(b"\r\n\r\n")
    name = _NAME.search(head)
    if not blank or name is None:
        raise _malformed("a part has no name")
    return Part(name[1].decode(errors="replace"), content)


def _malformed(reason: str) -> RequestError:
    return RequestError(f"The request's body is not a form with files: {reason}.", code="invalid_multipart")
