"""A router's index of the blocks in the engines' prefix caches, as reported to it."""

import time
from collections.abc import Callable, Iterable, Sequence

KEEP_S = 600.0  # engines report what they remove; this is for reports lost while disconnected
EXPECT_S = 10.0  # how long a prompt that is on its way to an engine counts as being there


class PrefixIndex:
    """Answers, for a prompt's chain of block digests, how many of its first blocks each engine has.

    Fed by `blocks_stored` and `blocks_removed`. An engine has a block only if it has all before it, as far as this
    index is concerned: so a prompt is looked up in a logarithm of its length, and an answer may be too high where an
    engine dropped a block from the middle, which costs that prompt time, and never a wrong token.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stored: dict[str, _FadingSet] = {}
        self._expected: dict[str, _FadingSet] = {}

    def add_engine(self, engine: str) -> None:
        """Add an engine, with an empty cache."""
        self._stored[engine] = _FadingSet(KEEP_S, self._clock)
        self._expected[engine] = _FadingSet(EXPECT_S, self._clock)

    def remove_engine(self, engine: str) -> None:
        """Forget an engine."""
        self._stored.pop(engine, None)
        self._expected.pop(engine, None)

    def update(self, engine: str, stored: Iterable[bytes], removed: Iterable[bytes]) -> None:
        """Note what entered and what left an engine's cache."""
        if (known := self._stored.get(engine)) is not None:
            known.add(stored)
            known.discard(removed)

    def expect(self, engine: str, digests: Iterable[bytes]) -> None:
        """Note that an engine is about to compute these blocks, or to read them."""
        if (known := self._expected.get(engine)) is not None:
            known.add(digests)
            self._stored[engine].refresh(digests)

    def num_cached(self, engine: str, digests: Sequence[bytes]) -> int:
        """Count the first blocks of a chain that an engine has."""
        stored, expected = self._stored[engine], self._expected[engine]
        stored.age()
        expected.age()
        low, high, middle = 0, len(digests), 0  # most engines that have not all of it have not even the first block
        while low < high:
            if digests[middle] in stored or digests[middle] in expected:
                low = middle + 1
            else:
                high = middle
            middle = (low + high) // 2
        return low

    def num_blocks(self, engine: str) -> int:
        """Count the blocks that an engine is known to have."""
        return len(self._stored[engine])


class _FadingSet:
    """A set that forgets what was not added, or refreshed, for `keep_s` to twice as long; in two halves by age."""

    __slots__ = ("_clock", "_keep_s", "_old", "_turn_s", "_young")

    def __init__(self, keep_s: float, clock: Callable[[], float]) -> None:
        self._keep_s = keep_s
        self._clock = clock
        self._turn_s = clock() + keep_s
        self._young: set[bytes] = set()
        self._old: set[bytes] = set()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._young or digest in self._old

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def add(self, digests: Iterable[bytes]) -> None:
        self.age()
        self._young.update(digests)

    def refresh(self, digests: Iterable[bytes]) -> None:
        self.age()
        if self._old:
            used = self._old.intersection(digests)
            self._old -= used
            self._young |= used

    def discard(self, digests: Iterable[bytes]) -> None:
        gone = set(digests)
        self._young -= gone
        self._old -= gone

    def age(self) -> None:
        now = self._clock()
        if now >= self._turn_s:
            self._old = self._young if now < self._turn_s + self._keep_s else set()
            self._young = set()
            self._turn_s = now + self._keep_s
