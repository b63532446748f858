"""Calls that are JSON objects with a name and arguments, whose arguments are passed on while they are written."""

import json
from collections.abc import Callable, Collection
from typing import Any

from rayinfer.tool_calls.call_writer import CallWriter
from rayinfer.tool_calls.cursor import Cursor, NotACall, Reading

ARGUMENT_KEYS = ("arguments", "parameters")
MAX_NAME_CHARS = 256

_CONTROLS = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}  # in a string they must be escaped, which models forget


class ObjectScanner:
    """Finds the end of a JSON object or list, character by character."""

    def __init__(self) -> None:
        self.depth = 0
        self.is_in_string = False
        self._is_escaped = False

    def add(self, char: str) -> None:
        """Read a character."""
        if self._is_escaped:
            self._is_escaped = False
        elif self.is_in_string:
            self._is_escaped = char == "\\"
            self.is_in_string = char != '"'
        elif char == '"':
            self.is_in_string = True
        elif char in "{[":
            self.depth += 1
        elif char in "}]":
            self.depth -= 1


def read_call_object(cursor: Cursor, calls: CallWriter, names: Collection[str] | None = None) -> Reading[None]:
    """Read a call, of one of the names where they are given; raises NotACall.

    Arguments behind the name are streamed; an object in any other order is read to its end first.
    """
    yield from cursor.expect("{")
    scanner, start, is_first = ObjectScanner(), cursor.position - 1, True
    scanner.depth = 1
    if names is not None:
        yield from _expect_known_key(cursor)
    while scanner.depth:
        char = yield from cursor.peek()
        if not char:
            raise NotACall
        if char == "{" and scanner.depth == 1 and not scanner.is_in_string and is_first:
            is_first = False
            name = _name_in(cursor.text[start : cursor.position])
            if name is not None:
                _check_name(name, names)
                calls.begin(name)
                cursor.commit()
                yield from stream_object(cursor, calls.add_arguments)
                yield from _skip_rest(cursor)
                return
        scanner.add(char)
        cursor.position += 1
    name, arguments = _whole_call(cursor.text[start : cursor.position])
    _check_name(name, names)
    calls.add(name, arguments)
    cursor.commit()


def read_call_list(cursor: Cursor, calls: CallWriter) -> Reading[None]:
    """Read `[{...}, {...}]`; raises NotACall for what comes after the calls that are complete."""
    yield from cursor.expect("[")
    yield from cursor.skip_space()
    if (yield from cursor.match("]")):
        raise NotACall
    while True:
        yield from cursor.skip_space()
        yield from read_call_object(cursor, calls)
        yield from cursor.skip_space()
        separator = yield from cursor.match(",", "]")
        cursor.commit()
        if separator != ",":
            return


def stream_object(cursor: Cursor, sink: Callable[[str], None]) -> Reading[None]:
    """Pass an object on as it comes, control characters in strings escaped; it may end before it is complete."""
    scanner = ObjectScanner()
    while True:
        piece = []
        while cursor.position < len(cursor.text):
            char = cursor.text[cursor.position]
            piece.append(_CONTROLS.get(char, char) if scanner.is_in_string else char)
            scanner.add(char)
            cursor.position += 1
            if not scanner.depth:
                break
        if piece:
            sink("".join(piece))
        cursor.commit()
        if (piece and not scanner.depth) or cursor.is_final:
            return
        yield


def loads(text: str) -> Any:
    """Parse JSON; raises NotACall."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        raise NotACall from None


def _expect_known_key(cursor: Cursor) -> Reading[None]:
    """Find out early that an object without a marker is none of a call, but part of the answer."""
    start = cursor.position
    yield from cursor.skip_space()
    yield from cursor.expect('"name"', '"type"', '"function"', *(f'"{key}"' for key in ARGUMENT_KEYS))
    cursor.position = start


def _name_in(header: str) -> str | None:
    """Return the name of a call in front of the object that may be its arguments."""
    try:
        call = loads(header + "{}}")
    except NotACall:
        return None
    name = call.get("name")
    return name if isinstance(name, str) and list(call)[-1] in ARGUMENT_KEYS else None


def _check_name(name: str, names: Collection[str] | None) -> None:
    if not 0 < len(name) <= MAX_NAME_CHARS or (names is not None and name not in names):
        raise NotACall


def _whole_call(text: str) -> tuple[str, str]:
    call = loads(text)
    if isinstance(call, dict) and isinstance(call.get("function"), dict):
        call = call["function"]
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise NotACall
    arguments: Any = next((call[key] for key in ARGUMENT_KEYS if key in call), {})
    if isinstance(arguments, str):
        arguments = loads(arguments or "{}")
    if arguments is not None and not isinstance(arguments, dict):
        raise NotACall
    return call["name"], json.dumps(arguments or {}, ensure_ascii=False)


def _skip_rest(cursor: Cursor) -> Reading[None]:
    """Skip what follows the arguments in their object; a missing brace is forgiven."""
    yield from cursor.skip_space()
    if not (yield from cursor.match(",")):
        yield from cursor.match("}")
        cursor.commit()
        return
    scanner = ObjectScanner()
    scanner.depth = 1
    while scanner.depth:
        char = yield from cursor.peek()
        if not char:
            raise NotACall
        scanner.add(char)
        cursor.position += 1
    cursor.commit()
