"""Block manager of models whose layers differ: full attention needs all of a request's blocks, a window the last ones.

Named after vLLM's hybrid KV cache manager.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from rayinfer.kv_cache.block_manager import BlockManager, CachedPrefix
from rayinfer.kv_cache.window_pages import NO_PAGE, WindowPages


class HybridBlockManager(BlockManager):
    """A BlockManager whose blocks have a page of the window pool while sliding-window layers may read them.

    A prefix is a hit as far as its last blocks, those that the next token sees, still have their pages.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        num_window_pages: int,
        window: int,
        enable_prefix_caching: bool = True,
        all_layers_slide: bool = False,
    ) -> None:
        super().__init__(num_blocks, block_size, enable_prefix_caching=enable_prefix_caching)
        self.window = window  # tokens that a token sees, itself included
        self.all_layers_slide = all_layers_slide  # so blocks have nothing but their pages
        self.num_blocks_seen = num_blocks_seen(window, block_size)
        self.pages = WindowPages(num_blocks, num_window_pages)

    def find_cached_prefix(
        self, block_hashes: Sequence[bytes], token_ids: NDArray[np.int32], salt: bytes = b""
    ) -> CachedPrefix:
        """Find the longest stored prefix after which a token finds all that it sees."""
        blocks = super().find_cached_prefix(block_hashes, token_ids, salt).blocks
        is_missing = self.pages.of_block[blocks] == NO_PAGE
        end = len(blocks)
        while end:
            first = max(0, end - self.num_blocks_seen)
            missing = np.flatnonzero(is_missing[first:end])
            if not len(missing):
                break
            end = first + int(missing[-1])  # every longer one that is shorter than before sees this block, too
        return CachedPrefix(blocks=blocks[:end], num_tokens=end * self.block_size)

    def free_pages(self, blocks: Sequence[int]) -> None:
        """Remove one reader from the pages of blocks, given in the order of their tokens; before the blocks' own."""
        self.pages.free(blocks, is_cached=list(map(self.has_content, blocks)))

    def reset_prefix_cache(self) -> None:
        """Forget the content of all free blocks, and of pages without readers."""
        super().reset_prefix_cache()
        self.pages.forget(np.flatnonzero(self.pages.of_block != NO_PAGE).tolist())

    def _forget(self, blocks: Iterable[int]) -> None:
        blocks = list(blocks)
        super()._forget(blocks)
        self.pages.forget(blocks)

    def _release(self, block: int) -> None:
        holder = self._stored.resolve_holder(block)
        if holder is not None and holder != block:  # the duplicate's page is the newer one
            self.pages.move(block, holder)
        super()._release(block)


def num_blocks_seen(window: int, block_size: int) -> int:
    """Count the blocks before a block's first token that this token sees, in part or whole."""
    return -(-(window - 1) // block_size)
