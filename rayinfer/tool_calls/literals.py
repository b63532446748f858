"""Literals of Python, and of Gemma's calls, read without ever evaluating anything."""

import json
import re
from collections.abc import Sequence
from typing import Any

from rayinfer.tool_calls.cursor import NotACall

_MAX_DEPTH = 64
_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])")
_WORD = re.compile(r"[^\W\d][\w.-]*")
_SPACE = re.compile(r"\s*")
_WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([\s\S]))")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}


class LiteralReader:
    """Reads literals from a whole text; every method raises NotACall for anything else."""

    def __init__(self, text: str, quotes: Sequence[str] = ('"', "'"), *, has_escapes: bool = True) -> None:
        self._text = text
        self._quotes = quotes
        self._has_escapes = has_escapes
        self._position = 0

    @property
    def is_at_end(self) -> bool:
        """Whether only spaces follow."""
        return not self._text[self._position :].strip()

    def match(self, token: str) -> bool:
        """Move beyond a token and the spaces in front of it, if it comes next."""
        self._skip_space()
        if not self._text.startswith(token, self._position):
            return False
        self._position += len(token)
        return True

    def expect(self, token: str) -> None:
        """Move beyond a token."""
        if not self.match(token):
            raise NotACall

    def word(self) -> str:
        """Read an identifier, which may have dots and dashes."""
        self._skip_space()
        return self._matched(_WORD)

    def value(self, depth: int = 0) -> Any:
        """Read a value."""
        if depth > _MAX_DEPTH:
            raise NotACall
        quote = next((quote for quote in self._quotes if self.match(quote)), None)
        if quote is not None:
            return self._string(quote)
        if self.match("["):
            return self._items("]", depth)
        if self.match("("):
            return self._items(")", depth)
        if self.match("{"):
            return self.members("}", ":", depth)
        if number := _NUMBER.match(self._text, self._position):
            self._position = number.end()
            return _number(number[0])
        word = self.word()
        if word not in _WORDS:
            raise NotACall
        return _WORDS[word]

    def members(self, closing: str, separator: str, depth: int = 0) -> dict[str, Any]:
        """Read keys and values up to a closing token."""
        members: dict[str, Any] = {}
        while not self.match(closing):
            if members:
                self.expect(",")
                if self.match(closing):
                    break
            quote = next((quote for quote in self._quotes if self.match(quote)), None)
            key = self.word() if quote is None else self._string(quote)
            self.expect(separator)
            members[key] = self.value(depth + 1)
        return members

    def _items(self, closing: str, depth: int) -> list[Any]:
        items: list[Any] = []
        while not self.match(closing):
            if items:
                self.expect(",")
                if self.match(closing):
                    break
            items.append(self.value(depth + 1))
        return items

    def _string(self, quote: str) -> str:
        start = self._position
        end = start
        while True:
            end = self._text.find(quote, end)
            if end < 0:
                raise NotACall
            slashes = end
            while slashes > start and self._text[slashes - 1] == "\\":
                slashes -= 1
            if not self._has_escapes or (end - slashes) % 2 == 0:
                break
            end += 1
        before = self._text[start:end]
        self._position = end + len(quote)
        return _ESCAPE.sub(_unescaped, before) if self._has_escapes else before

    def _matched(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._position)
        if found is None:
            raise NotACall
        self._position = found.end()
        return found[0]

    def _skip_space(self) -> None:
        self._matched(_SPACE)


def _number(text: str) -> int | float:
    try:
        number: int | float = json.loads(text.replace("_", ""))
    except ValueError:  # as Python writes it: .5, 1., +1
        try:
            number = float(text)
        except ValueError:
            raise NotACall from None
    if number != number or number in (float("inf"), float("-inf")):
        raise NotACall
    return number


def _unescaped(found: re.Match[str]) -> str:
    code = found[1] or found[2]
    if code is not None:
        return chr(int(code, 16)).encode("utf-8", "replace").decode()
    return _ESCAPED.get(found[3], found[3] if found[3] in "\\'\"" else found[0])
