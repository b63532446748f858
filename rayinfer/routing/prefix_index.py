"""A router's index of the blocks in the engines' prefix caches, as reported to it."""

import time
from collections.abc import Callable, Iterable, Sequence

KEEP_S = 600.0  # engines report what they remove; this is for reports lost while disconnected
EXPECT_S = 10.0  # how long a prompt that was sent to an engine counts as cached there


class PrefixIndex:
    """Index of how many of the first blocks of a prompt's hash chain each engine has cached.

    Updated by `blocks_stored` and `blocks_removed`. It assumes that an engine with a block has all blocks before it: so
    a look-up takes the logarithm of the prompt's length. The count is too high where an engine evicted a block from the
    middle, which costs that prompt time, and never a wrong token.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stored: dict[str, _ExpiringSet] = {}
        self._expected: dict[str, _ExpiringSet] = {}

    def add_engine(self, engine: str) -> None:
        """Add an engine, with an empty cache."""
        self._stored[engine] = _ExpiringSet(KEEP_S, self._clock)
        self._expected[engine] = _ExpiringSet(EXPECT_S, self._clock)

    def remove_engine(self, engine: str) -> None:
        """Remove an engine."""
        self._stored.pop(engine, None)
        self._expected.pop(engine, None)

    def update(self, engine: str, stored: Iterable[bytes], removed: Iterable[bytes]) -> None:
        """Record the blocks that entered and left an engine's cache."""
        if (known := self._stored.get(engine)) is not None:
            known.add(stored)
            known.discard(removed)

    def expect(self, engine: str, block_hashes: Iterable[bytes]) -> None:
        """Record that an engine is about to compute these blocks, or to read them."""
        if (known := self._expected.get(engine)) is not None:
            known.add(block_hashes)
            self._stored[engine].refresh(block_hashes)

    def num_cached(self, engine: str, block_hashes: Sequence[bytes]) -> int:
        """Count the first blocks of a chain that an engine has."""
        stored, expected = self._stored[engine], self._expected[engine]
        stored.age()
        expected.age()
        low, high, middle = 0, len(block_hashes), 0  # most engines with a miss do not even have the first block
        while low < high:
            if block_hashes[middle] in stored or block_hashes[middle] in expected:
                low = middle + 1
            else:
                high = middle
            middle = (low + high) // 2
        return low

    def num_blocks(self, engine: str) -> int:
        """Count the blocks that an engine is known to have."""
        return len(self._stored[engine])


class _ExpiringSet:
    """Set whose items expire `keep_s` to twice as long after they were added or refreshed; in two halves by age."""

    __slots__ = ("_clock", "_keep_s", "_old", "_rotate_s", "_young")

    def __init__(self, keep_s: float, clock: Callable[[], float]) -> None:
        self._keep_s = keep_s
        self._clock = clock
        self._rotate_s = clock() + keep_s
        self._young: set[bytes] = set()
        self._old: set[bytes] = set()

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._young or block_hash in self._old

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def add(self, block_hashes: Iterable[bytes]) -> None:
        self.age()
        self._young.update(block_hashes)

    def refresh(self, block_hashes: Iterable[bytes]) -> None:
        self.age()
        if self._old:
            used = self._old.intersection(block_hashes)
            self._old -= used
            self._young |= used

    def discard(self, block_hashes: Iterable[bytes]) -> None:
        gone = set(block_hashes)
        self._young -= gone
        self._old -= gone

    def age(self) -> None:
        now = self._clock()
        if now >= self._rotate_s:
            self._old = self._young if now < self._rotate_s + self._keep_s else set()
            self._young = set()
            self._rotate_s = now + self._keep_s
