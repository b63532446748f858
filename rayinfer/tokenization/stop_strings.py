"""Finding stop strings in text that arrives piece by piece."""

from collections.abc import Sequence
from typing import NamedTuple


class StopMatch(NamedTuple):
    """A stop string, and where it ends in the piece of text that completed it."""

    stop_string: str
    end: int


class _Pattern:
    """One stop string and how much of it the text so far ends with (Knuth, Morris and Pratt)."""

    def __init__(self, string: str) -> None:
        self.string = string
        self.num_matched = 0
        # borders[k]: length of the longest proper prefix of string[:k+1] that also ends it; grown as far as needed, so
        # that a stop string costs nothing for the part that never matches.
        self._borders = [0]

    def advance(self, character: str) -> bool:
        """Take one character, and return whether it completes the string."""
        string, matched, borders = self.string, self.num_matched, self._borders
        while matched and string[matched] != character:
            matched = borders[matched - 1]
        if string[matched] == character:
            matched += 1
            if matched > len(borders):
                self._add_border(character)
        is_complete = matched == len(string)
        self.num_matched = borders[-1] if is_complete else matched
        return is_complete

    def _add_border(self, character: str) -> None:
        border = self._borders[-1]
        while border and self.string[border] != character:
            border = self._borders[border - 1]
        self._borders.append(border + 1 if self.string[border] == character else border)


class StopStringFinder:
    """Watches a growing text for the stop string that is complete first; of those that end together, the longest."""

    def __init__(self, stop_strings: Sequence[str]) -> None:
        longest_first = sorted(dict.fromkeys(stop_strings), key=len, reverse=True)
        self._patterns = [_Pattern(string) for string in longest_first]
        self._first_characters = frozenset(string[0] for string in longest_first)
        self.num_held = 0  # characters at the end of the text that may begin a stop string

    def scan(self, text: str, *, is_looking: bool = True) -> StopMatch | None:
        """Read on; while not looking, stop strings that are completed are passed over."""
        if not self.num_held and self._first_characters.isdisjoint(text):
            return None
        for position, character in enumerate(text):
            for pattern in self._patterns:
                if pattern.advance(character) and is_looking:
                    return StopMatch(pattern.string, position + 1)
        self.num_held = max(pattern.num_matched for pattern in self._patterns)
        return None

    def restart(self, text: str) -> None:
        """Begin again with `text`, passing over what is complete in it."""
        for pattern in self._patterns:
            pattern.num_matched = 0
        self.num_held = 0
        self.scan(text, is_looking=False)
