"""JSON from bytes: strict, in linear time, and shallow before anything walks it recursively.

Of two members with one name the later counts, as everywhere in Python. A refused value is reported with its place
where that is cheap.
"""

import json
import math
import re
from itertools import accumulate, count
from operator import sub
from typing import Any, NoReturn

from rayinfer.errors import RequestError
from rayinfer.servers.json_error_location import (
    MAX_DIGITS,
    locate_constant,
    locate_large_number,
    locate_lone_surrogate,
)

MAX_DEPTH = 64  # lists and objects inside each other
MAX_PIECES = 2**15  # lists, objects and members in all: each costs memory, and many the garbage collector's time
MAX_VALUES = 2**18  # in lists: as many token ids as the longest contexts have

_PERHAPS_LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # perhaps only half a character
_PERHAPS_INFINITE = re.compile(rb"[eE]\+?0*(?:30[89]|3[1-9][0-9]|[4-9][0-9]{2}|[0-9]{4})")  # if only in a text
_PLAIN_NUMBERS = bytes.maketrans(b"123456789E", b"0" * 9 + b"e")
_LONG_EXPONENT = b"e000"
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
    if _PERHAPS_LONE_SURROGATE.search(raw):
        try:
            json.dumps(body, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            location = locate_lone_surrogate(raw, body)
            raise _unreadable("cannot be read", "half a surrogate pair is no character", location) from None
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
    numbers = raw.translate(_PLAIN_NUMBERS, b"+")
    has_long_number = _TOO_MANY_DIGITS in numbers  # if only in a text
    readers: dict[str, Any] = {"parse_int": _read_integer} if has_long_number else {}
    if has_long_number or (_LONG_EXPONENT in numbers and _PERHAPS_INFINITE.search(raw)):
        readers["parse_float"] = _read_float
    try:
        return json.loads(text, parse_constant=_refuse_constant, **readers)
    except json.JSONDecodeError as error:
        reason = f"{error.msg} (line {error.lineno}, column {error.colno})"
        raise _unreadable("is not valid JSON", reason) from None
    except _UnknownConstant as error:
        raise _unreadable("is not valid JSON", str(error), locate_constant(raw)) from None
    except ValueError:  # also where the interpreter is set to read fewer digits than we do
        raise _unreadable("cannot be read", "a number is too large", locate_large_number(raw)) from None


def _refuse_constant(constant: str) -> NoReturn:
    raise _UnknownConstant(f"{constant} is not a number")


def _read_integer(literal: str) -> int:
    if len(literal) > MAX_DIGITS:
        raise ValueError("a number is too large")
    return int(literal)


def _read_float(literal: str) -> float:
    number = float(literal) if len(literal) <= MAX_DIGITS else math.inf
    if math.isinf(number):
        raise ValueError("a number is too large")
    return number


def _unreadable(what: str, reason: str, location: str | None = None) -> RequestError:
    details = reason if location is None else f"{location}: {reason}"
    return RequestError(f"The request's body {what}: {details}.", location, "invalid_json")
