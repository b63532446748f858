"""Pages of the window pool: where the keys and values of sliding-window layers lie, for the blocks that have a page."""

from array import array
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from rayinfer.kv_cache.free_list import FreeList

NO_PAGE = -1  # in `of_block`


class WindowPages:
    """Readers of pages, and which block each belongs to; each operation is O(1) for each of its blocks.

    A block has one page or none. A page with readers stays with its block. One without is free: it stays with its
    block, where a prefix-cache hit may want it, until it is allocated to another, least recently used first.
    """

    def __init__(self, num_blocks: int, num_pages: int) -> None:
        self.num_pages = num_pages
        self.of_block: NDArray[np.int32] = np.full(num_blocks, NO_PAGE, np.int32)
        self._blocks = array("i", [NO_PAGE]) * num_pages  # by page
        self._readers = array("i", bytes(4 * num_blocks))  # by block
        self._free = FreeList(num_pages)

    @property
    def num_free(self) -> int:
        """Pages without readers, those of cached blocks included."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Pages with readers."""
        return self.num_pages - len(self._free)

    def num_readers(self, block: int) -> int:
        """Count the rows that hold the block's page."""
        return self._readers[block]

    def allocate(self, blocks: Sequence[int]) -> None:
        """Give each of the blocks, which have none, a page with one reader; there must be as many free pages."""
        for block, page in zip(blocks, self._free.take_first(len(blocks)), strict=True):
            assert self.of_block[block] == NO_PAGE, f"block {block} has a page"
            before = self._blocks[page]
            if before != NO_PAGE:
                self.of_block[before] = NO_PAGE
            self._blocks[page] = block
            self.of_block[block] = page
            self._readers[block] = 1

    def pin(self, blocks: Sequence[int]) -> None:
        """Add one reader to the page of each block; all of them have one."""
        for block in blocks:
            page = int(self.of_block[block])
            if page == NO_PAGE:
                raise RuntimeError(f"the window page of block {block} is pinned, but it has none")
            if not self._readers[block]:
                self._free.remove(page)
            self._readers[block] += 1

    def free(self, blocks: Sequence[int], *, is_cached: Sequence[bool]) -> None:
        """Remove one reader from the page of each block; `is_cached` marks blocks that may be hit with their page.

        The last is evicted last: a hit that ends there needs the pages before it, too.
        """
        for block, stays in zip(blocks, is_cached, strict=True):
            if not self._readers[block]:
                raise RuntimeError(f"the window page of block {block} is freed but has no readers")
            self._readers[block] -= 1
            if self._readers[block]:
                continue
            if stays:
                self._free.add_last(int(self.of_block[block]))
            else:
                self._free.add_first(self._detach(block))

    def forget(self, blocks: Iterable[int]) -> None:
        """Take their pages from blocks whose content is forgotten, but for pages with readers."""
        for block in blocks:
            if self.of_block[block] != NO_PAGE and not self._readers[block]:
                page = self._detach(block)
                self._free.remove(page)
                self._free.add_first(page)

    def move(self, source: int, target: int) -> None:
        """Give the free page of a block to another of equal content that has none."""
        if self.of_block[source] == NO_PAGE or self.of_block[target] != NO_PAGE or self._readers[source]:
            return
        page = self._detach(source)
        self._blocks[page] = target
        self.of_block[target] = page

    def _detach(self, block: int) -> int:
        page = int(self.of_block[block])
        self.of_block[block] = NO_PAGE
        self._blocks[page] = NO_PAGE
        return page
