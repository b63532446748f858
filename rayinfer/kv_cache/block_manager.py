"""Reference counts of KV blocks, the free list, and prefix-cache lookup."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayinfer.errors import ConfigError
from rayinfer.kv_cache.free_list import FreeList
from rayinfer.kv_cache.stored_blocks import BlockEvents, StoredBlocks


class OutOfBlocks(RuntimeError):
    """More blocks were requested than are free; none was allocated. Never leaves the engine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedPrefix:
    """Blocks that already hold a prompt's first tokens; they may be evicted until they are pinned."""

    blocks: list[int]
    num_tokens: int


class BlockManager:
    """Reference counts of all blocks; each operation is O(1) for each of its blocks, whatever the pool's size.

    A block has readers or is free. A free block that is stored can be hit until it is allocated again. A caller that
    found a cached prefix pins it before it allocates anything: allocating may evict what is not pinned.
    """

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = True) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ConfigError(f"num_blocks and block_size must be at least 1, got {num_blocks} and {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._caches_prefixes = enable_prefix_caching
        self._readers = array("i", bytes(4 * num_blocks))
        self._free = FreeList(num_blocks)
        self._stored = StoredBlocks(num_blocks, block_size)
        self.num_cached = 0  # free blocks that can be hit

    @property
    def num_free(self) -> int:
        """Blocks without readers, cached ones included."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks with readers."""
        return self.num_blocks - len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Allocate blocks with one reader each, least recently used first; raises OutOfBlocks."""
        if count > len(self._free):
            raise OutOfBlocks(f"{count} blocks requested, {len(self._free)} of {self.num_blocks} free")
        blocks = self._free.take_first(count)
        if self.num_cached:
            self.num_cached -= sum(map(self._stored.is_holder, blocks))
        self._forget(blocks)
        for block in blocks:
            self._readers[block] = 1
        return blocks

    def find_cached_prefix(
        self, block_hashes: Sequence[bytes], token_ids: NDArray[np.int32], salt: bytes = b""
    ) -> CachedPrefix:
        """Find the longest stored prefix; a hit is verified against salt, parent and tokens, not only by hash."""
        blocks = self._stored.find(block_hashes, token_ids, salt)
        return CachedPrefix(blocks=blocks, num_tokens=len(blocks) * self.block_size)

    def pin(self, blocks: Sequence[int]) -> None:
        """Add one reader to each block, which has readers or was found as part of a cached prefix."""
        for block in blocks:
            if not self._readers[block]:
                if not self._stored.is_holder(block):
                    raise RuntimeError(f"block {block} is pinned but holds nothing: it was evicted in between")
                self._free.remove(block)
                self.num_cached -= 1
            self._readers[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Remove one reader from each of a request's blocks, given in the order of its tokens.

        The last block is freed first, so it is also evicted first: a cached parent outlives its children.
        """
        for block in reversed(blocks):
            if not self._readers[block]:
                raise RuntimeError(f"block {block} is freed but has no readers")
            self._readers[block] -= 1
            if not self._readers[block]:
                self._release(block)

    def store(
        self, block: int, block_hash: bytes, *, parent: int | None, token_ids: NDArray[np.int32], salt: bytes = b""
    ) -> None:
        """Store a full block whose keys and values are written: from now on it can be hit.

        `parent` is the request's block before this one and must be stored first. If an equal block is stored already,
        that one continues to be hit and this one is its duplicate. An older block whose own parent is gone can never
        be hit again and is replaced.
        """
        self.store_all([block], [block_hash], parents=[parent], token_ids=token_ids[np.newaxis], salts=[salt])

    def store_all(
        self,
        blocks: Sequence[int],
        block_hashes: Sequence[bytes],
        *,
        parents: Sequence[int | None],
        token_ids: NDArray[np.int32],
        salts: Sequence[bytes],
    ) -> None:
        """Store many blocks as `store` does one, in their order; `token_ids` is [num_blocks, block_size]."""
        if not self._caches_prefixes:
            return
        for block in blocks:
            if not self._readers[block]:
                raise RuntimeError(f"block {block} is stored but has no readers")
        for displaced in self._stored.add(blocks, block_hashes, parents=parents, token_ids=token_ids, salts=salts):
            if not self._readers[displaced]:
                self._forget([displaced])
                self.num_cached -= 1
                self._free.remove(displaced)
                self._free.add_first(displaced)

    def forget(self, block_hashes: Iterable[bytes], blocks: Iterable[int] = ()) -> None:
        """Remove these hashes and `blocks` from the prefix cache, even blocks with readers.

        A duplicate is hit once its equal is gone: `blocks` must include duplicates.
        """
        holders = [holder for block_hash in block_hashes if (holder := self._stored.holder_of(block_hash)) is not None]
        forgotten = {*holders, *blocks}
        self.num_cached -= sum(not self._readers[block] and self._stored.is_holder(block) for block in forgotten)
        self._forget(forgotten)
        for block in holders:
            if not self._readers[block]:
                self._free.remove(block)
                self._free.add_first(block)

    def is_stored(self, block_hash: bytes) -> bool:
        """Whether some block is stored under this hash."""
        return block_hash in self._stored

    def has_content(self, block: int) -> bool:
        """Whether the block's content is known: it is stored, or a duplicate of one that is."""
        return self._stored.has_content(block)

    def take_events(self) -> BlockEvents:
        """Return the hashes stored and removed since the last call; replayed, they give the stored hashes."""
        return self._stored.take_events()

    def reset_prefix_cache(self) -> None:
        """Forget the content of all free blocks; this one operation takes time in proportion to the stored blocks."""
        self._forget([block for block in self._stored.holders() if not self._readers[block]])
        self.num_cached = 0

    def _release(self, block: int) -> None:
        holder = self._stored.resolve_holder(block)
        if holder == block:
            self._free.add_last(block)
            self.num_cached += 1
            return
        self._forget([block])
        self._free.add_first(block)
        if holder is not None and not self._readers[holder]:  # using a duplicate is using its holder
            self._free.remove(holder)
            self._free.add_last(holder)

    def _forget(self, blocks: Iterable[int]) -> None:
        """Forget the content of blocks; every loss of content passes here."""
        self._stored.forget(blocks)
