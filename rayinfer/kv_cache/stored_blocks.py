"""Prefix-cache index: blocks with written keys and values, their tokens, and verification of hits."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

_NO_CHAIN = 0  # the parent of a first block


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockEvents:
    """Hashes stored and removed since the last call; no hash is in both lists."""

    stored: list[bytes]
    removed: list[bytes]


class StoredBlocks:
    """Map from hash to block, with what verifies a hit without trusting the hash.

    A chain is a number, never used twice, for the verified content of a block and all blocks before it. A stored block
    keeps its own chain and its parent's. Duplicates, blocks of equal content, share their chain; only one of them,
    the holder, is hit. A parent that is evicted takes its chain with it, so what its block id or its hash names
    later never verifies as the parent of the old children.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._holders: dict[bytes, int] = {}
        self._hashes: list[bytes | None] = [None] * num_blocks  # None: the block's other fields are unused
        self._parent_hashes: list[bytes | None] = [None] * num_blocks
        self._salts: list[bytes] = [b""] * num_blocks
        self._chains = array("q", bytes(8 * num_blocks))
        self._parent_chains = array("q", bytes(8 * num_blocks))
        self._token_ids = np.zeros((num_blocks, block_size), dtype=np.int32)
        self._newest_chain = _NO_CHAIN
        # Dicts are used as ordered sets. A hash that is stored and removed between two calls is in neither, so both
        # stay smaller than the pool even if they are never read.
        self._newly_stored: dict[bytes, None] = {}
        self._newly_removed: dict[bytes, None] = {}

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._holders

    def is_holder(self, block: int) -> bool:
        """Whether a hit on some hash gives this very block."""
        block_hash = self._hashes[block]
        return block_hash is not None and self._holders.get(block_hash) == block

    def has_content(self, block: int) -> bool:
        """Whether the block was stored and is not forgotten."""
        return self._hashes[block] is not None

    def holder_of(self, block_hash: bytes) -> int | None:
        """Return the block that a hit on the hash gives."""
        return self._holders.get(block_hash)

    def holders(self) -> Iterable[int]:
        """List the blocks that can be hit."""
        return self._holders.values()

    def find(self, block_hashes: Sequence[bytes], token_ids: NDArray[np.int32], salt: bytes) -> list[int]:
        """Return the longest run of verified hits from the first hash on."""
        blocks: list[int] = []
        chain = _NO_CHAIN
        for block_hash in islice(block_hashes, len(token_ids) // self._block_size):
            block = self._holders.get(block_hash)
            if block is None or self._parent_chains[block] != chain or self._salts[block] != salt:
                break
            blocks.append(block)
            chain = self._chains[block]
        return blocks[: self._count_equal(blocks, token_ids)]

    def add(
        self,
        blocks: Sequence[int],
        block_hashes: Sequence[bytes],
        *,
        parents: Sequence[int | None],
        token_ids: NDArray[np.int32],
        salts: Sequence[bytes],
    ) -> list[int]:
        """Store written blocks, [num_blocks, block_size]; returns those that are no longer hit for their hashes."""
        displaced = []
        known, chains, holders = self._hashes, self._chains, self._holders
        parent_hashes, parent_chains, known_salts = self._parent_hashes, self._parent_chains, self._salts
        self._token_ids[blocks] = token_ids
        for block, block_hash, parent, salt in zip(blocks, block_hashes, parents, salts, strict=True):
            if known[block] is not None:
                if known[block] != block_hash:
                    raise RuntimeError(f"block {block} is stored already, under another hash")
                continue
            if parent is not None and known[parent] is None:
                raise RuntimeError(f"block {block} is stored before its parent, block {parent}")
            known[block] = block_hash
            known_salts[block] = salt
            parent_hashes[block] = None if parent is None else known[parent]
            parent_chains[block] = _NO_CHAIN if parent is None else chains[parent]
            holder = holders.get(block_hash)
            if holder is not None and self._are_equal(block, holder):
                chains[block] = chains[holder]
                continue
            self._newest_chain += 1
            chains[block] = self._newest_chain
            if holder is None:
                self._hold(block, block_hash)
            elif not self._is_reachable(holder):
                holders[block_hash] = block
                displaced.append(holder)
        return displaced

    def resolve_holder(self, block: int) -> int | None:
        """Return the block that is hit for the hash of one without readers now: itself, another, or none."""
        block_hash = self._hashes[block]
        if block_hash is None:
            return None
        holder = self._holders.get(block_hash)
        if holder is None:  # its duplicate was evicted meanwhile
            self._hold(block, block_hash)
            return block
        return holder

    def forget(self, blocks: Iterable[int]) -> None:
        """Forget the content of blocks before something else is written to them."""
        known, holders = self._hashes, self._holders
        for block in blocks:
            block_hash = known[block]
            if block_hash is None:
                continue
            known[block] = None
            if holders.get(block_hash) == block:
                del holders[block_hash]
                if block_hash in self._newly_stored:
                    del self._newly_stored[block_hash]
                else:
                    self._newly_removed[block_hash] = None

    def take_events(self) -> BlockEvents:
        """Return what changed since the last call."""
        events = BlockEvents(stored=list(self._newly_stored), removed=list(self._newly_removed))
        self._newly_stored.clear()
        self._newly_removed.clear()
        return events

    def _count_equal(self, blocks: list[int], token_ids: NDArray[np.int32]) -> int:
        if not blocks:
            return 0
        wanted = token_ids[: len(blocks) * self._block_size].reshape(len(blocks), self._block_size)
        differs = (self._token_ids[blocks] != wanted).any(axis=1)
        return int(differs.argmax()) if differs.any() else len(blocks)

    def _hold(self, block: int, block_hash: bytes) -> None:
        self._holders[block_hash] = block
        if block_hash in self._newly_removed:
            del self._newly_removed[block_hash]
        else:
            self._newly_stored[block_hash] = None

    def _are_equal(self, one: int, other: int) -> bool:
        return (
            self._parent_chains[one] == self._parent_chains[other]
            and self._salts[one] == self._salts[other]
            and self._token_ids[one].tobytes() == self._token_ids[other].tobytes()
        )

    def _is_reachable(self, block: int) -> bool:
        """Whether a walk that hits the block's parent still verifies the block as its child."""
        parent_hash = self._parent_hashes[block]
        if parent_hash is None:
            return True
        parent = self._holders.get(parent_hash)
        return parent is not None and self._chains[parent] == self._parent_chains[block]
