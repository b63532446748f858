"""JSON from bytes: strict, in linear time, and shallow before anything walks it recursively.

Of two members with one name the later counts, as everywhere in Python. A refused value is reported with its place
where that is cheap.
"""

import json
import re
from itertools import accumulate, count
from operator import sub
from typing import Any, NoReturn

from rayinfer.errors import RequestError
from rayinfer.servers.unreadable_values import (
    MAX_DIGITS,
    place_of_constant,
    place_of_half_character,
    place_of_long_number,
)

MAX_DEPTH = 64  # lists and objects inside each other
MAX_PIECES = 2**15  # lists, objects and members in all: each costs memory, and many the garbage collector's time
MAX_VALUES = 2**18  # in lists: as many token ids as the longest contexts have

_HALF_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")  # perhaps only half a character
_NO_DIGIT_BUT_ZERO = bytes.maketrans(b"123456789", b"0" * 9)
_TOO_MANY_DIGITS = b"0" * (MAX_DIGITS + 1)
_NO_MARK = bytes(set(range(256)) - set(b'"[]{}:,'))
_TWO_IF_OPENING = bytes(2 if byte in b"[{" else 0 for byte in range(256))


class _UnknownConstant(ValueError):
    """A constant that Python's json takes for a number, such as NaN."""


def decode_json(raw: bytes) -> Any:
    """Read one JSON value; raises RequestError that names what cannot be read, and where if that is cheap."""
    text = _decode_text(raw)
    _check_shape(raw)
    body = _load(raw, text)
    if _HALF_CHARACTER.search(raw):
        try:
            json.dumps(body, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            place = place_of_half_character(raw, body)
            raise _unreadable("cannot be read", "half a surrogate pair is no character", place) from None
    return body


def _decode_text(raw: bytes) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _unreadable("is not valid UTF-8", f"see byte {error.start}") from None
    if text.startswith("\ufeff"):
        raise _unreadable("is not valid JSON", "it begins with a byte order mark")
    return text


def _check_shape(raw: bytes) -> None:
    """Refuse what is nested deeply or in too many pieces, without reading it."""
    is_shallow = raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH
    if is_shallow and raw.count(b":") <= MAX_PIECES and raw.count(b",") < MAX_VALUES:
        return  # as nearly all bodies
    marks = _marks_outside_strings(raw)
    brackets = marks.translate(None, b":,")
    num_openings = brackets.count(b"[") + brackets.count(b"{")
    if max(num_openings, len(brackets) // 2) + marks.count(b":") > MAX_PIECES:
        raise _unreadable("cannot be read", f"it has more than {MAX_PIECES} lists, objects and members")
    if marks.count(b",") >= MAX_VALUES:
        raise _unreadable("cannot be read", f"it has more than {MAX_VALUES} values")
    # An opening bracket counts two and a closing one nothing; less one for every bracket, the sum is the depth.
    depths = map(sub, accumulate(brackets.translate(_TWO_IF_OPENING)), count(1))
    if max(depths, default=0) > MAX_DEPTH:
        raise _unreadable("cannot be read", f"lists and objects are nested more than {MAX_DEPTH} deep")


def _marks_outside_strings(raw: bytes) -> bytes:
    """Keep brackets, colons and commas outside strings: exact up to a body's first error."""
    without_escapes = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Strings without marks leave two quotes side by side, and go here.
    skeleton = without_escapes.translate(None, _NO_MARK).replace(b'""', b"")
    return b"".join(skeleton.split(b'"')[::2])


def _load(raw: bytes, text: str) -> Any:
    # Python's own limit of digits is a setting of the interpreter, without which the time would be quadratic.
    has_long_number = _TOO_MANY_DIGITS in raw.translate(_NO_DIGIT_BUT_ZERO)  # if only in a text
    readers: dict[str, Any] = {"parse_int": _read_integer, "parse_float": _read_float} if has_long_number else {}
    try:
        return json.loads(text, parse_constant=_refuse_constant, **readers)
    except json.JSONDecodeError as error:
        reason = f"{error.msg} (line {error.lineno}, column {error.colno})"
        raise _unreadable("is not valid JSON", reason) from None
    except _UnknownConstant as error:
        raise _unreadable("is not valid JSON", str(error), place_of_constant(raw)) from None
    except ValueError:  # also where the interpreter is set to read fewer digits than we do
        raise _unreadable("cannot be read", "a number is too large", place_of_long_number(raw)) from None


def _refuse_constant(constant: str) -> NoReturn:
    raise _UnknownConstant(f"{constant} is not a number")


def _read_integer(literal: str) -> int:
    if len(literal) > MAX_DIGITS:
        raise ValueError("a number is too large")
    return int(literal)


def _read_float(literal: str) -> float:
    if len(literal) > MAX_DIGITS:
        raise ValueError("a number is too large")
    return float(literal)


def _unreadable(what: str, reason: str, place: str | None = None) -> RequestError:
    told = reason if place is None else f"{place}: {reason}"
    return RequestError(f"The request's body {what}: {told}.", place, "invalid_json")
