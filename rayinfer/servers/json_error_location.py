"""Locations of the values for which a body was refused; long bodies are not searched."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

MAX_SEARCHED_BYTES = 2**17  # a tenth of a second, in which other requests wait
MAX_DIGITS = 4000  # of one number: Python's own limit is a little more

_MARK = object()  # stands where such a value was


def locate_constant(raw: bytes) -> str | None:
    """Find the first constant that Python's json takes for a number, such as NaN."""
    return _locate_mark(raw, json.JSONDecoder(parse_constant=lambda _: _MARK))


def locate_large_number(raw: bytes) -> str | None:
    """Find the first number of more digits than are read, or that no float can hold."""

    def read(literal: str) -> Any:
        return 0 if len(literal) <= MAX_DIGITS else _MARK

    def read_float(literal: str) -> Any:
        return _MARK if math.isinf(float(literal)) else read(literal)

    return _locate_mark(raw, json.JSONDecoder(parse_int=read, parse_float=read_float))


def locate_lone_surrogate(raw: bytes, body: Any) -> str | None:
    """Find the first text of a body that holds half a surrogate pair."""
    if len(raw) > MAX_SEARCHED_BYTES:
        return None
    return _first_location(body, lambda value: isinstance(value, str) and not _can_be_sent(value))


def _locate_mark(raw: bytes, decoder: json.JSONDecoder) -> str | None:
    if len(raw) > MAX_SEARCHED_BYTES:
        return None
    with suppress(ValueError, RecursionError):  # behind the value there may be more that cannot be read
        return _first_location(decoder.decode(raw.decode("utf-8")), lambda value: value is _MARK)
    return None


def _first_location(body: Any, is_wanted: Callable[[Any], bool]) -> str | None:
    """Write the place of the first such value as `messages.0.content`."""
    path: list[str] = []
    levels = [_members(body)]
    while levels:
        for key, value in levels[-1]:
            if is_wanted(value):
                return ".".join([*path, key])
            if isinstance(value, dict | list):
                path.append(key)
                levels.append(_members(value))
                break
        else:
            levels.pop()
            del path[-1:]
    return None


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        return iter(value.items())
    return ((str(index), item) for index, item in enumerate(value if isinstance(value, list) else ()))


def _can_be_sent(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
