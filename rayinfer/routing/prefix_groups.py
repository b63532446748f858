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
        self._by_digest: defaultdict[bytes, dict[T, None]] = defaultdict(dict)  # in order of arrival
        self._digests: dict[T, Sequence[bytes]] = {}

    def __len__(self) -> int:
        return len(self._digests)

    def add(self, item: T, digests: Sequence[bytes]) -> None:
        """Add a waiting request, with the digests of its full blocks."""
        self._digests[item] = [digests[length - 1] for length in COMPARED_LENGTHS if length <= len(digests)]
        for digest in self._digests[item]:
            self._by_digest[digest][item] = None

    def remove(self, item: T) -> None:
        """Remove a request; does nothing if it is unknown."""
        for digest in self._digests.pop(item, ()):
            group = self._by_digest[digest]
            del group[item]
            if not group:
                del self._by_digest[digest]

    def sharing_most(self, digests: Sequence[bytes]) -> Iterable[T]:
        """Find the requests that share the most blocks with a prompt, in order of arrival; maybe none."""
        for length in reversed(COMPARED_LENGTHS):
            if length <= len(digests) and (group := self._by_digest.get(digests[length - 1])) is not None:
                return group
        return ()
