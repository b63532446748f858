"""Patterns for the names of layers, as adapters bring them along: matched within a time limit, which `re` has not."""

import math
import re
import time
from typing import Any

import regex

from rayinfer.errors import AdapterRefused, shown

LIMIT_S = 1.0  # for all patterns of an adapter and all layers of a model; ordinary ones take milliseconds
MAX_PATTERN_CHARS = 1000
MAX_REPEATS = 1000  # all of a pattern's counts, multiplied as if one held the other: matching may store so many states

_ESCAPED = re.compile(r"\\.", re.DOTALL)
_COUNTS = re.compile(r"\{([^{}]*)\}")
# Calls of groups, which nothing bounds; white space that may be ignored would hide numbers, and re has no calls at all.
_RECURSION = re.compile(r"\(\?(R|[-+]?\d|&|P[>&])")
_VERBOSE = re.compile(r"\(\?[a-zA-Z\d]*x")


def check_pattern(pattern: str, place: str) -> None:
    """Raise AdapterRefused for what is no regular expression, or is too long for one."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise AdapterRefused(f"{place} has a pattern of more than {MAX_PATTERN_CHARS:,} characters")
    plain = _ESCAPED.sub("_", pattern)
    if _RECURSION.search(plain):
        raise AdapterRefused(f"{place} has the bad pattern {shown(pattern)}: recursion is not supported")
    if _VERBOSE.search(plain):
        raise AdapterRefused(f"{place} has the bad pattern {shown(pattern)}: the flag x is not supported")
    counts = (re.findall(r"\d+", each) for each in _COUNTS.findall(plain))
    if math.prod(max(1, *map(int, found)) for found in counts if found) > MAX_REPEATS:
        raise AdapterRefused(f"{place} has the bad pattern {shown(pattern)}: more than {MAX_REPEATS:,} repeats")
    try:
        regex.compile(pattern)
    except regex.error as error:
        raise AdapterRefused(f"{place} has the bad pattern {shown(pattern)}: {error}") from None
    except RecursionError:
        raise AdapterRefused(f"{place} has the bad pattern {shown(pattern)}: nested too deeply") from None


def suffix_pattern(pattern: str) -> str:
    """Return what PEFT makes of a key of `rank_pattern`: it may stand for the end of a layer's name."""
    return rf"(.*\.)?({pattern})"


class PatternMatcher:
    """Matches layers with an adapter's patterns, all of them together within `limit_s` seconds."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = self._left_s = limit_s
        self._compiled: dict[str, Any] = {}  # regex itself remembers some hundreds

    def matches(self, pattern: str, layer: str) -> bool:
        """Return whether a pattern matches a layer's whole name; raises AdapterRefused once the time is spent."""
        started = time.monotonic()
        try:
            compiled = self._compiled.get(pattern) or self._compiled.setdefault(pattern, regex.compile(pattern))
            is_match = compiled.fullmatch(layer, timeout=self._left_s, concurrent=True) is not None
        except TimeoutError:
            is_match = False
        self._left_s -= time.monotonic() - started
        if self._left_s <= 0:
            raise AdapterRefused(
                f"matching the adapter's patterns takes more than {self._limit_s:g} s, lastly {shown(pattern)}"
            )
        return is_match
