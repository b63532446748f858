"""Prefix hits on stored blocks; hashes are given by hand, so that different contents can claim the same one."""

import numpy as np
import pytest

from rayinfer.kv_cache.block_manager import BlockManager

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def tokens(*values):
    return np.array(values, dtype=np.int32)


@pytest.fixture
def manager():
    return BlockManager(num_blocks=8, block_size=2)


def write(manager, block_hash, token_ids, parent=None, salt=b""):
    """Allocate a block and store it; its one reader is still there."""
    (block,) = manager.allocate(1)
    manager.store(block, block_hash, parent=parent, token_ids=token_ids, salt=salt)
    return block


def hit(manager, block_hashes, token_ids, salt=b""):
    return manager.find_cached_prefix(block_hashes, token_ids, salt).blocks


def evict_everything_free(manager):
    blocks = manager.allocate(manager.num_free)
    manager.free(blocks)


def test_a_block_is_hit_only_after_it_was_stored(manager):
    (block,) = manager.allocate(1)
    assert hit(manager, [A], tokens(1, 2)) == []
    manager.store(block, A, parent=None, token_ids=tokens(1, 2))
    assert hit(manager, [A], tokens(1, 2)) == [block]
    assert manager.is_stored(A)
    assert not manager.is_stored(B)


def test_the_longest_stored_prefix_is_found(manager):
    first = write(manager, A, tokens(1, 2))
    second = write(manager, B, tokens(3, 4), parent=first)
    found = manager.find_cached_prefix([A, B, C], tokens(1, 2, 3, 4, 5, 6, 7))
    assert (found.blocks, found.num_tokens) == ([first, second], 4)


def test_a_hole_ends_the_prefix(manager):
    first = write(manager, A, tokens(1, 2))
    write(manager, B, tokens(3, 4), parent=first)
    assert hit(manager, [A, C, B], tokens(1, 2, 9, 9, 3, 4)) == [first]
    assert hit(manager, [B], tokens(3, 4)) == []


def test_hashes_of_blocks_beyond_the_given_tokens_are_not_hit(manager):
    first = write(manager, A, tokens(1, 2))
    write(manager, B, tokens(3, 4), parent=first)
    assert hit(manager, [A, B], tokens(1, 2, 3)) == [first]
    assert hit(manager, [A], tokens(1)) == []
    assert hit(manager, [], tokens(1, 2)) == []


def test_a_forged_hash_with_other_tokens_is_no_hit(manager):
    first = write(manager, A, tokens(1, 2))
    write(manager, B, tokens(3, 4), parent=first)
    assert hit(manager, [A], tokens(1, 9)) == []
    assert hit(manager, [A, B], tokens(1, 2, 3, 9)) == [first]
    assert hit(manager, [A, B], tokens(9, 2, 3, 4)) == []


def test_a_forged_hash_does_not_replace_the_block_that_has_it(manager):
    true = write(manager, A, tokens(1, 2))
    forged = write(manager, A, tokens(8, 9))
    assert hit(manager, [A], tokens(1, 2)) == [true]
    assert hit(manager, [A], tokens(8, 9)) == []
    child = write(manager, B, tokens(3, 4), parent=forged)
    assert hit(manager, [A, B], tokens(1, 2, 3, 4)) == [true]
    manager.free([forged, child])
    assert hit(manager, [A], tokens(1, 2)) == [true]


def test_a_salt_separates_equal_tokens_even_under_an_equal_hash(manager):
    block = write(manager, A, tokens(1, 2), salt=b"one")
    assert hit(manager, [A], tokens(1, 2), salt=b"one") == [block]
    assert hit(manager, [A], tokens(1, 2), salt=b"other") == []
    assert hit(manager, [A], tokens(1, 2)) == []
    write(manager, A, tokens(1, 2), salt=b"other")
    assert hit(manager, [A], tokens(1, 2), salt=b"other") == []


def test_equal_tokens_behind_another_parent_are_no_hit_even_under_an_equal_hash(manager):
    one, other = write(manager, A, tokens(1, 1)), write(manager, C, tokens(2, 2))
    child = write(manager, B, tokens(5, 6), parent=one)
    assert hit(manager, [A, B], tokens(1, 1, 5, 6)) == [one, child]
    assert hit(manager, [C, B], tokens(2, 2, 5, 6)) == [other]
    assert hit(manager, [B], tokens(5, 6)) == []


def test_a_reused_parent_does_not_verify_even_with_its_old_id_and_hash(manager):
    parent = write(manager, A, tokens(1, 2))
    child = write(manager, B, tokens(3, 4), parent=parent)
    manager.free([parent])
    evict_everything_free(manager)
    forged = parent
    blocks = manager.allocate(manager.num_free)
    assert forged in blocks
    manager.store(forged, A, parent=None, token_ids=tokens(8, 9))
    assert hit(manager, [A, B], tokens(8, 9, 3, 4)) == [forged]
    assert hit(manager, [A, B], tokens(1, 2, 3, 4)) == []
    manager.free([child])


def test_a_child_of_an_evicted_parent_makes_way_when_its_content_is_stored_again(manager):
    parent = write(manager, A, tokens(1, 2))
    stale = write(manager, B, tokens(3, 4), parent=parent)
    manager.free([parent])
    evict_everything_free(manager)
    parent = write(manager, A, tokens(1, 2))
    assert hit(manager, [A, B], tokens(1, 2, 3, 4)) == [parent]
    fresh = write(manager, B, tokens(3, 4), parent=parent)
    assert hit(manager, [A, B], tokens(1, 2, 3, 4)) == [parent, fresh]
    manager.free([stale])
    assert hit(manager, [A, B], tokens(1, 2, 3, 4)) == [parent, fresh]


def test_a_free_block_that_makes_way_is_the_next_one_handed_out(manager):
    parent = write(manager, A, tokens(1, 2))
    stale = write(manager, B, tokens(3, 4), parent=parent)
    manager.free([parent])
    evict_everything_free(manager)
    manager.free([stale])
    parent = write(manager, A, tokens(1, 2))
    write(manager, B, tokens(3, 4), parent=parent)
    assert manager.allocate(1) == [stale]


def test_of_duplicates_the_first_is_hit_and_both_have_the_same_children(manager):
    holder, twin = write(manager, A, tokens(1, 2)), write(manager, A, tokens(1, 2))
    child = write(manager, B, tokens(3, 4), parent=twin)
    assert hit(manager, [A, B], tokens(1, 2, 3, 4)) == [holder, child]


def test_a_duplicate_takes_over_when_the_holder_is_evicted(manager):
    holder, twin = write(manager, A, tokens(1, 2)), write(manager, A, tokens(1, 2))
    child = write(manager, B, tokens(3, 4), parent=twin)
    manager.free([holder])
    evict_everything_free(manager)
    assert not manager.is_stored(A)
    manager.free([twin, child])
    assert hit(manager, [A, B], tokens(1, 2, 3, 4)) == [twin, child]


def test_storing_a_block_again_changes_nothing_but_not_under_another_hash(manager):
    block = write(manager, A, tokens(1, 2))
    manager.take_events()
    manager.store(block, A, parent=None, token_ids=tokens(1, 2))
    events = manager.take_events()
    assert (events.stored, events.removed) == ([], [])
    with pytest.raises(RuntimeError, match="stored already"):
        manager.store(block, B, parent=None, token_ids=tokens(3, 4))


def test_a_child_cannot_be_stored_before_its_parent(manager):
    parent, child = manager.allocate(2)
    with pytest.raises(RuntimeError, match=f"block {child} is stored before its parent, block {parent}"):
        manager.store(child, B, parent=parent, token_ids=tokens(3, 4))
    assert not manager.is_stored(B)


def test_a_block_without_readers_cannot_be_stored(manager):
    with pytest.raises(RuntimeError, match="no readers"):
        manager.store(0, A, parent=None, token_ids=tokens(1, 2))


def test_events_have_stored_and_evicted_blocks(manager):
    block = write(manager, A, tokens(1, 2))
    events = manager.take_events()
    assert (events.stored, events.removed) == ([A], [])
    manager.free([block])
    evict_everything_free(manager)
    events = manager.take_events()
    assert (events.stored, events.removed) == ([], [A])
    events = manager.take_events()
    assert (events.stored, events.removed) == ([], [])


def test_what_comes_and_goes_between_two_looks_is_no_event(manager):
    manager.free([write(manager, A, tokens(1, 2))])
    evict_everything_free(manager)
    events = manager.take_events()
    assert (events.stored, events.removed) == ([], [])
    manager.free([write(manager, A, tokens(1, 2))])
    manager.take_events()
    evict_everything_free(manager)
    write(manager, A, tokens(1, 2))
    events = manager.take_events()
    assert (events.stored, events.removed) == ([], [])


def test_a_reset_forgets_free_blocks_and_keeps_those_with_readers(manager):
    kept, forgotten = write(manager, A, tokens(1, 2)), write(manager, B, tokens(3, 4))
    manager.free([forgotten])
    manager.take_events()
    manager.reset_prefix_cache()
    assert hit(manager, [A], tokens(1, 2)) == [kept]
    assert hit(manager, [B], tokens(3, 4)) == []
    assert manager.take_events().removed == [B]
    assert manager.num_free == 7


def test_without_prefix_caching_nothing_is_ever_hit():
    manager = BlockManager(num_blocks=4, block_size=2, enable_prefix_caching=False)
    first = write(manager, A, tokens(1, 2))
    write(manager, B, tokens(3, 4), parent=first)
    assert hit(manager, [A, B], tokens(1, 2, 3, 4)) == []
    assert manager.take_events().stored == []
