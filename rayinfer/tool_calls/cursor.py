"""Text that arrives in pieces, read by generators that yield while they wait for more.

Decisions depend on the text alone, never on its cuts: a reader that cannot decide yet waits.
"""

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]

_SPACE = " \t\r\n"
_AFTER_SPACE = re.compile(r"[^ \t\r\n]|\Z")


class NotACall(Exception):
    """The text that was read since the last commit is no tool call."""


class Cursor:
    """A position in text of which more may come; what was committed is forgotten."""

    def __init__(self) -> None:
        self.text = ""
        self.position = 0
        self.is_final = False

    def add(self, text: str) -> None:
        """Append more text."""
        self.text += text

    def commit(self) -> None:
        """Forget what was read."""
        self.text, self.position = self.text[self.position :], 0

    def read_so_far(self) -> str:
        """Return what was read since the last commit, and commit it."""
        text = self.text[: self.position]
        self.commit()
        return text

    def peek(self) -> Reading[str]:
        """Return the next character; nothing at the end."""
        while self.position >= len(self.text) and not self.is_final:
            yield
        return self.text[self.position : self.position + 1]

    def skip_space(self) -> Reading[None]:
        """Move to the next character that is no space."""
        while True:
            found = _AFTER_SPACE.search(self.text, self.position)
            assert found is not None
            self.position = found.start()
            if self.position < len(self.text) or self.is_final:
                return
            yield

    def match(self, *options: str) -> Reading[str]:
        """Move beyond the first of the options that stands here and return it; else return nothing."""
        while True:
            rest = self.text[self.position : self.position + max(map(len, options))]
            may_come = [option for option in options if option.startswith(rest) and len(option) > len(rest)]
            if self.is_final or not may_come:
                break
            yield
        for option in options:
            if rest.startswith(option):
                self.position += len(option)
                return option
        return ""

    def expect(self, *options: str) -> Reading[str]:
        """Like `match`; raises NotACall where none of the options stands here."""
        found = yield from self.match(*options)
        if not found:
            raise NotACall
        return found

    def close(self, *markers: str) -> Reading[None]:
        """Move beyond spaces and one of the markers, if they come next, and commit."""
        start = self.position
        yield from self.skip_space()
        if not (yield from self.match(*markers)):
            self.position = start
        self.commit()

    def read_until(self, *markers: str, limit: int) -> Reading[str]:
        """Return the text before the first marker and stay in front of it; raises NotACall for more than `limit`."""
        start = self.position
        while True:
            at, _ = first_marker(self.text, markers, start)
            if 0 <= at <= start + limit:
                self.position = at
                return self.text[start:at]
            if self.is_final or at >= 0 or len(self.text) - start > limit + max(map(len, markers)):
                self.position = min(len(self.text), start + limit)  # however much more has come by now
                raise NotACall
            yield

    def stream_until(self, markers: Sequence[str], sink: Callable[[str], None]) -> Reading[str]:
        """Pass text on as it comes, up to the first marker, which is consumed and returned; nothing at the end."""
        while True:
            at, marker = first_marker(self.text, markers, self.position)
            end = at if at >= 0 else len(self.text)
            if at < 0 and not self.is_final:
                end -= held_back(self.text[self.position :], markers)
            if end > self.position:
                sink(self.text[self.position : end])
            self.position = end + len(marker)
            self.commit()
            if at >= 0 or self.is_final:
                return marker
            yield


def first_marker(text: str, markers: Sequence[str], start: int) -> tuple[int, str]:
    """Find the first of several markers, the longest of those at one place; -1 and nothing where there is none."""
    found = [(at, -len(marker), marker) for marker in markers if (at := text.find(marker, start)) >= 0]
    if not found:
        return -1, ""
    at, _, marker = min(found)
    return at, marker


def held_back(text: str, markers: Sequence[str]) -> int:
    """Return how many characters at the end may become a marker."""
    for length in range(min(len(text), max(map(len, markers), default=1) - 1), 0, -1):
        ending = text[-length:]
        if any(marker.startswith(ending) for marker in markers):
            return length
    return 0


def trailing_space(text: str) -> int:
    """Return the number of spaces at the end."""
    return len(text) - len(text.rstrip(_SPACE))
