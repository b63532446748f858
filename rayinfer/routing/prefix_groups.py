"""Waiting requests grouped by shared prefixes of their prompts."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

# The lengths, in blocks, at which prefixes are compared: each a third or half longer than the one before, so a long
# prompt costs little more than a short one. Longer shared prefixes count as equal.
COMPARED_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)

T = TypeVar("T")


class PrefixGroups(Generic[T]):
    """Finds the requests that share the longest prefix with a prompt, to within a third, without a scan."""

    def __init__(self) -> None:
        self._by_hash: defaultdict[bytes, dict[T, None]] = defaultdict(dict)  # in order of arrival
        self._hashes: dict[T, Sequence[bytes]] = {}

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, item: T, block_hashes: Sequence[bytes]) -> None:
        """Add a waiting request, with the hashes of its full blocks."""
        self._hashes[item] = [block_hashes[length - 1] for length in COMPARED_LENGTHS if length <= len(block_hashes)]
        for block_hash in self._hashes[item]:
            self._by_hash[block_hash][item] = None

    def remove(self, item: T) -> None:
        """Remove a request; does nothing if it is unknown."""
        for block_hash in self._hashes.pop(item, ()):
            group = self._by_hash[block_hash]
            del group[item]
            if not group:
                del self._by_hash[block_hash]

    def sharing_most(self, block_hashes: Sequence[bytes]) -> Iterable[T]:
        """Find the requests that share the most blocks with a prompt, in order of arrival; maybe none."""
        for length in reversed(COMPARED_LENGTHS):
            if length <= len(block_hashes) and (group := self._by_hash.get(block_hashes[length - 1])) is not None:
                return group
        return ()
