"""A router's index of the blocks in the engines' prefix caches and in the stores behind them, as reported to it."""

import time
from collections.abc import Callable, Iterable, Sequence

from rayinfer.protocols import SharedStore

KEEP_S = 600.0  # engines report what they remove; this is for reports lost while disconnected
EXPECT_S = 10.0  # how long a prompt that was sent to an engine counts as cached there


class PrefixIndex:
    """Index of how many of the first blocks of a prompt's hash chain each engine has cached.

    Updated by `blocks_stored` and `blocks_removed`. It assumes that an engine with a block has all blocks before it: so
    a look-up takes the logarithm of the prompt's length. The count is too high where an engine evicted a block from the
    middle, which costs that prompt time, and never a wrong token.

    A machine's KV block store has what its engines have cached, and keeps it when they evict it or are gone. So it is
    known from the same reports, as many blocks of it as it holds; what it had before is not known.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stored: dict[str, _ExpiringSet] = {}
        self._expected: dict[str, _ExpiringSet] = {}
        self._store_of: dict[str, str] = {}  # by engine, the name of the store that it shares
        self._kept: dict[str, _ExpiringSet] = {}  # by store

    def add_engine(self, engine: str, store: SharedStore | None = None) -> None:
        """Add an engine, with an empty cache, and maybe with a store that others share."""
        self._stored[engine] = _ExpiringSet(KEEP_S, self._clock)
        self._expected[engine] = _ExpiringSet(EXPECT_S, self._clock)
        self._drop_forgotten_stores()
        if store is not None:
            self._store_of[engine] = store.name
            self._kept.setdefault(store.name, _ExpiringSet(KEEP_S, self._clock, most=store.num_blocks))

    def remove_engine(self, engine: str) -> None:
        """Remove an engine."""
        self._stored.pop(engine, None)
        self._expected.pop(engine, None)
        self._store_of.pop(engine, None)  # the store stays: another engine may come

    def update(self, engine: str, stored: Iterable[bytes], removed: Iterable[bytes]) -> None:
        """Record the blocks that entered and left an engine's cache."""
        if (known := self._stored.get(engine)) is not None:
            stored = list(stored)
            known.add(stored)
            known.discard(removed)
            if (kept := self._kept_behind(engine)) is not None:
                kept.add(stored)

    def expect(self, engine: str, block_hashes: Iterable[bytes]) -> None:
        """Record that an engine is about to compute these blocks, or to read them."""
        if (known := self._expected.get(engine)) is not None:
            known.add(block_hashes)
            self._stored[engine].refresh(block_hashes)
            if (kept := self._kept_behind(engine)) is not None:
                kept.refresh(block_hashes)

    def num_cached(self, engine: str, block_hashes: Sequence[bytes]) -> int:
        """Count the first blocks of a chain that an engine has."""
        return _length_in(block_hashes, self._stored[engine], self._expected[engine])

    def num_in_store(self, engine: str, block_hashes: Sequence[bytes]) -> int:
        """Count the first blocks of a chain that the store behind an engine has."""
        kept = self._kept_behind(engine)
        return 0 if kept is None else _length_in(block_hashes, kept)

    def num_blocks(self, engine: str) -> int:
        """Count the blocks that an engine is known to have."""
        return len(self._stored[engine])

    @property
    def num_stores(self) -> int:
        """Stores of which something is known."""
        return len(self._kept)

    def _kept_behind(self, engine: str) -> "_ExpiringSet | None":
        store = self._store_of.get(engine)
        return None if store is None else self._kept[store]

    def _drop_forgotten_stores(self) -> None:
        """Drop stores without engines once all that they are known for has expired."""
        for store in self._kept.keys() - self._store_of.values():
            self._kept[store].age()
            if not len(self._kept[store]):
                del self._kept[store]


def _length_in(block_hashes: Sequence[bytes], *known: "_ExpiringSet") -> int:
    """Count the first blocks of a chain that are in one of the sets."""
    for each in known:
        each.age()
    low, high, middle = 0, len(block_hashes), 0  # most engines with a miss do not even have the first block
    while low < high:
        if any(block_hashes[middle] in each for each in known):
            low = middle + 1
        else:
            high = middle
        middle = (low + high) // 2
    return low


class _ExpiringSet:
    """Set whose items expire `keep_s` to twice as long after they were added or refreshed; in two halves by age.

    With `most`, the older half expires before its time once the younger one has half as many.
    """

    __slots__ = ("_clock", "_keep_s", "_most", "_old", "_rotate_s", "_young")

    def __init__(self, keep_s: float, clock: Callable[[], float], most: int | None = None) -> None:
        self._keep_s = keep_s
        self._clock = clock
        self._most = most
        self._rotate_s = clock() + keep_s
        self._young: set[bytes] = set()
        self._old: set[bytes] = set()

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._young or block_hash in self._old

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def add(self, block_hashes: Iterable[bytes]) -> None:
        self.age()
        if self._most is not None and len(self._young) >= self._most // 2:
            self._old, self._young = self._young, set()
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
