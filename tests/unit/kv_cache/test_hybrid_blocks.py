"""Prefix hits where sliding-window layers have given back pages."""

import numpy as np
import pytest

from rayinfer.kv_cache.block_hash import hash_blocks
from rayinfer.kv_cache.hybrid_blocks import HybridBlockManager, num_blocks_seen

SIZE = 4
TOKENS = np.arange(32, dtype=np.int32)
HASHES = hash_blocks(TOKENS.tolist(), SIZE, b"")


def stored(num_pages, window, count=8, num_blocks=20):
    """Write and store the blocks of one request, then free them."""
    manager = HybridBlockManager(num_blocks, SIZE, num_window_pages=num_pages, window=window)
    write(manager, count)
    return manager


def write(manager, count):
    blocks = manager.allocate(count)
    manager.pages.allocate(blocks)
    rows = TOKENS[: count * SIZE].reshape(count, SIZE)
    parents = [None, *blocks[:-1]]
    manager.store_all(blocks, HASHES[:count], parents=parents, token_ids=rows, salts=[b""] * count)
    manager.free_pages(blocks)
    manager.free(blocks)
    return blocks


def evict(manager, count):
    """Give pages to so many blocks of other requests, and free these."""
    others = manager.allocate(count)
    manager.pages.allocate(others)
    manager.free_pages(others)
    manager.free(others)


@pytest.mark.parametrize(("window", "seen"), [(1, 0), (2, 1), (5, 1), (6, 2), (9, 2), (10, 3)])
def test_a_token_at_a_blocks_start_sees_the_window_before_it(window, seen):
    assert num_blocks_seen(window, SIZE) == seen


def test_a_prefix_is_hit_whole_while_its_last_pages_are_there():
    manager = stored(num_pages=8, window=9)
    evict(manager, 6)
    assert manager.find_cached_prefix(HASHES, TOKENS).num_tokens == 32


def test_a_prefix_without_its_last_pages_is_no_hit():
    manager = stored(num_pages=8, window=9)
    evict(manager, 7)  # the last block has its page, the one before it has none
    assert manager.find_cached_prefix(HASHES, TOKENS).num_tokens == 0


def test_a_prefix_is_hit_as_far_as_its_next_token_finds_its_window():
    manager = stored(num_pages=8, window=9)
    blocks = manager.find_cached_prefix(HASHES, TOKENS).blocks
    manager.pages.forget(blocks[6:7])
    assert manager.find_cached_prefix(HASHES, TOKENS).num_tokens == 24
    manager.pages.forget(blocks[3:4])
    assert manager.find_cached_prefix(HASHES, TOKENS).num_tokens == 24
    manager.pages.forget(blocks[5:6])
    assert manager.find_cached_prefix(HASHES, TOKENS).num_tokens == 12


def test_a_prefix_that_is_written_again_is_hit_again():
    manager = stored(num_pages=8, window=9)
    evict(manager, 8)
    assert manager.find_cached_prefix(HASHES, TOKENS).num_tokens == 0
    write(manager, 8)  # duplicates, whose pages go to the blocks that are hit
    assert manager.find_cached_prefix(HASHES, TOKENS).num_tokens == 32


def test_a_reset_takes_pages_from_blocks_that_are_still_read():
    manager = stored(num_pages=8, window=9)
    prefix = manager.find_cached_prefix(HASHES, TOKENS)
    manager.pin(prefix.blocks)
    manager.pages.pin(prefix.blocks[-2:])
    manager.reset_prefix_cache()
    assert np.flatnonzero(manager.pages.of_block >= 0).tolist() == prefix.blocks[-2:]
