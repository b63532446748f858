"""Blocks without readers, in the order in which they are allocated again."""

from array import array


class FreeList:
    """A doubly linked list of block ids, least recently used first; each operation on a block is O(1).

    The links are two flat integer arrays: a million blocks cost 8 MB, and the garbage collector nothing.
    """

    def __init__(self, num_blocks: int) -> None:
        self._end = num_blocks  # one more link than blocks: it closes the ring, before the first and after the last
        self._next = array("i", range(1, num_blocks + 1))
        self._next.append(0)
        self._previous = array("i", (num_blocks,))
        self._previous.extend(range(num_blocks))
        self._size = num_blocks

    def __len__(self) -> int:
        return self._size

    def take_first(self, count: int) -> list[int]:
        """Remove and return the least recently used blocks."""
        assert count <= self._size, f"{count} blocks requested, {self._size} are in the list"
        blocks, block = [], self._next[self._end]
        for _ in range(count):
            blocks.append(block)
            block = self._next[block]
        self._next[self._end] = block
        self._previous[block] = self._end
        self._size -= count
        return blocks

    def remove(self, block: int) -> None:
        """Remove a block that is in the list."""
        before, after = self._previous[block], self._next[block]
        self._next[before] = after
        self._previous[after] = before
        self._size -= 1

    def add_first(self, block: int) -> None:
        """Insert a block to be allocated next."""
        self._insert(block, before=self._end, after=self._next[self._end])

    def add_last(self, block: int) -> None:
        """Insert a block to be allocated last."""
        self._insert(block, before=self._previous[self._end], after=self._end)

    def _insert(self, block: int, before: int, after: int) -> None:
        self._previous[block] = before
        self._next[block] = after
        self._next[before] = block
        self._previous[after] = block
        self._size += 1
